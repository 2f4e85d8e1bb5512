"""One worker as the controller knows it: whether it is there, its last beat, its speed, its crashes."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from enum import Enum, auto

from coordinator.records import OpenRow
from coordinator.scheduler import WorkerView
from coordinator.throughput import Throughput
from fleet import keys
from fleet.job import Finish
from fleet.messages import Beat, Host, Ready, WorkerState

#: Crashes that no quarantine explained before a worker's batch is halved.
HALVE_AT = 3


class Presence(Enum):
    """Whether a worker is there: EXPECTED -> ALIVE <-> STALE -> LOST -> ALIVE, until it leaves."""

    #: no beat yet
    EXPECTED = auto()
    ALIVE = auto()
    #: its lease runs out: no beat for longer than one should take
    STALE = auto()
    #: its lease ran out, or its process ended; what it had is back in the pool
    LOST = auto()


#: States in which a worker gives back what it does not compute yet.
RESTING = frozenset({WorkerState.PAUSED, WorkerState.STOPPING})


def _first_number() -> int:
    """Where a coordinator begins to count a worker's shards, who may hold some of another coordinator before it."""
    return secrets.randbits(32) << 20


@dataclass(slots=True)
class Member:
    """A worker of the fleet. Owned by the controller's thread."""

    id: str
    #: for people; the id where nobody gave one
    name: str = ""
    host: Host = field(default_factory=Host)
    #: a process of ours on this machine: it gets work before its first beat
    local: bool = False
    presence: Presence = Presence.EXPECTED
    #: last beat seen, None before the first and after the worker was lost
    beat: Beat | None = None
    #: controller's clock when it was last heard of; before that when it was expected to come
    heard_s: float = 0.0
    #: epoch of the broker on which it was last heard
    epoch: str = ""
    throughput: Throughput = field(default_factory=Throughput)
    #: number of the next shard cut for it; never goes back
    next_shard: int = field(default_factory=_first_number)
    #: crashes whose suspects all ran through, so that nothing was to blame but the load
    unexplained: int = 0
    #: cap last set by us, 0 for the engine's own
    cap: int = 0
    #: (model, hash) it could not load -> why; forgotten when its process is another
    refused: dict[tuple[str, str], str] = field(default_factory=dict)
    #: rows of it that were recorded
    rows_done: int = 0

    def __post_init__(self) -> None:
        self.name = self.name or self.id

    @property
    def engine(self) -> Ready | None:
        """Its loaded engine."""
        return self.beat.engine if self.beat else None

    @property
    def running(self) -> tuple[int, ...]:
        """Rows in its batch, as of its last beat."""
        return tuple(row for row, _ in self.beat.running) if self.beat else ()

    @property
    def resting(self) -> bool:
        """True while it wants no work."""
        return self.beat is not None and self.beat.state in RESTING

    @property
    def takes_work(self) -> bool:
        """Whether shards may be sent to it now."""
        there = self.presence is Presence.ALIVE or (self.local and self.presence is Presence.EXPECTED)
        return there and not self.resting

    def shard_id(self) -> str:
        """A shard id never used before."""
        self.next_shard += 1
        return keys.shard(self.id, self.next_shard)

    def heard(self, beat: Beat, now_s: float) -> None:
        """Takes a beat."""
        if self.beat is not None and beat.nonce != self.beat.nonce:
            self.refused.clear()
        self.beat = beat
        self.heard_s = now_s
        self.host = beat.host if beat.host.name else self.host
        self.throughput.report(beat.figures, now_s)

    def lost(self) -> None:
        """Nothing is known of what it does now."""
        self.beat = None
        self.presence = Presence.LOST
        self.refused.clear()

    def unexplained_crash(self) -> int | None:
        """Counts one; the new cap when it is time to halve the batch, else None."""
        self.unexplained += 1
        if self.unexplained < HALVE_AT:
            return None
        self.unexplained = 0
        in_force = self.cap or (self.engine.cap if self.engine else 2)
        self.cap = max(in_force // 2, 1)
        return self.cap

    def view(self, outstanding_s: float, model_hash: str | None = None) -> WorkerView:
        """What the policy may see of it; with `model_hash` only of an engine of that model."""
        engine = self.engine
        if engine is not None and model_hash is not None and engine.model_hash != model_hash:
            engine = None
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
