"""One worker as the controller knows it: its last beat, its speed, its crashes."""

from __future__ import annotations

from dataclasses import dataclass, field

from coordinator.records import OpenRow
from coordinator.scheduler import WorkerView
from coordinator.throughput import Throughput
from fleet import keys
from fleet.job import Finish
from fleet.messages import Beat

#: Crashes that no quarantine explained before a worker's batch is halved.
HALVE_AT = 3


@dataclass(slots=True)
class Member:
    """A worker of this run. Owned by the controller's thread."""

    id: str
    #: last beat seen, None before the first and after the lease was lost
    beat: Beat | None = None
    throughput: Throughput = field(default_factory=Throughput)
    #: number of the next shard cut for it; never goes back
    next_shard: int = 0
    #: crashes whose suspects all ran through, so that nothing was to blame but the load
    unexplained: int = 0
    #: cap last set by us, 0 for the engine's own
    cap: int = 0

    def shard_id(self) -> str:
        """A shard id never used before."""
        self.next_shard += 1
        return keys.shard(self.id, self.next_shard)

    def heard(self, beat: Beat, now_s: float) -> None:
        """Takes a beat."""
        self.beat = beat
        self.throughput.report(beat.figures, now_s)

    def unexplained_crash(self) -> int | None:
        """Counts one; the new cap when it is time to halve the batch, else None."""
        self.unexplained += 1
        if self.unexplained < HALVE_AT:
            return None
        self.unexplained = 0
        in_force = self.cap or (self.beat.engine.cap if self.beat and self.beat.engine else 2)
        self.cap = max(in_force // 2, 1)
        return self.cap

    def view(self, outstanding_s: float) -> WorkerView:
        """What the policy may see of it."""
        engine = self.beat.engine if self.beat else None
        longest = min(engine.context_tokens, engine.budget_bytes // max(engine.kv_bytes, 1)) if engine else 0
        return WorkerView(
            id=self.id,
            cap=min(engine.cap, self.cap or engine.cap) if engine else 0,
            longest_tokens=longest,
            decode_tps=self.throughput.decode_tps,
            prefill_tps=self.throughput.prefill_tps,
            reports=self.throughput.reports,
            outstanding_s=outstanding_s,
        )


@dataclass(slots=True)
class OutputLengths:
    """What fraction of their max_tokens rows use, from those that finished; 1 before any has."""

    used: int = 0
    allowed: int = 0

    def finished(self, row: OpenRow, output_tokens: int, finish: Finish) -> None:
        """Learns from a row."""
        if finish is not Finish.ERROR:
            self.used += output_tokens
            self.allowed += row.max_tokens

    def expected(self, max_tokens: float) -> float:
        """Expected new tokens of rows allowed `max_tokens` in sum."""
        return max_tokens * (self.used / self.allowed) if self.allowed else max_tokens
