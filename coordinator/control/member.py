"""One worker as the controller knows it: whether it is there, its last beat, its speed, its crashes."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from enum import Enum, auto

from coordinator.scheduling.picture import Seen
from coordinator.scheduling.speeds import Speed
from coordinator.scheduling.throughput import Throughput
from fleet import keys
from fleet.messages import Beat, Host, Ready, WorkerState

#: Crashes that no quarantine explained before a worker's batch is halved.
HALVE_AT = 3
#: Halvings before a worker gets nothing more, where others do the work.
DRAIN_AT = 2


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
    #: with the model of this hash, the last that it held
    speed: Speed = field(default_factory=Speed)
    speed_of: str = ""
    #: number of the next shard cut for it; never goes back
    next_shard: int = field(default_factory=_first_number)
    #: crashes whose suspects all ran through, so that nothing was to blame but the load
    unexplained: int = 0
    #: cap last set by us, 0 for the engine's own
    cap: int = 0
    #: how often it was halved
    halvings: int = 0
    #: (model, hash) it could not load -> why; forgotten when its process is another
    refused: dict[tuple[str, str], str] = field(default_factory=dict)
    #: rows of it that were recorded
    rows_done: int = 0
    #: it left in good order, or has not been seen by this coordinator: not worth a line
    forgotten: bool = False

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
    def worn(self) -> bool:
        """Whether its engine crashes again and again although its batch was halved."""
        return self.halvings >= DRAIN_AT

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
        if beat.engine is not None and beat.engine.model_hash != self.speed_of:
            self.speed = Speed(beat.engine.decode_tps, beat.engine.prefill_tps)
            self.speed_of = beat.engine.model_hash
        self.beat = beat
        self.heard_s = now_s
        self.forgotten = False
        self.host = beat.host if beat.host.name else self.host
        self.throughput.report(beat.figures, now_s)
        steady = beat.state in (WorkerState.WORKING, WorkerState.THROTTLED)
        self.speed.report(beat.figures, now_s, waits=beat.waiting > 0, steady=steady)

    def lost(self) -> None:
        """Nothing is known of what it does now."""
        self.beat = None
        self.presence = Presence.LOST
        self.refused.clear()

    def left(self) -> None:
        """It went in good order: what comes back under its name is begun with anew."""
        self.forgotten = True
        self.unexplained = self.halvings = self.cap = 0

    def unexplained_crash(self) -> int | None:
        """Counts one; the new cap when it is time to halve the batch, else None."""
        self.unexplained += 1
        if self.unexplained < HALVE_AT:
            return None
        self.unexplained = 0
        self.halvings += 1
        in_force = self.cap or (self.engine.cap if self.engine else 2)
        self.cap = max(in_force // 2, 1)
        return self.cap

    def seen(self, model_hash: str) -> Seen:
        """What its last beat said of its work, as far as its engine is of this model."""
        engine = self.engine
        if self.beat is None or engine is None or engine.model_hash != model_hash:
            return Seen()
        return Seen(
            cap=min(engine.cap, self.cap or engine.cap),
            longest_tokens=min(engine.context_tokens, engine.budget_bytes // max(engine.kv_bytes, 1)),
            shards=frozenset(self.beat.shards),
            running=dict(self.beat.running),
        )
