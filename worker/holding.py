"""What a worker holds: shards, rows owed, rows inside the engine. Events in, decisions out; no I/O, no clock."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from fleet.messages import (
    Admitted,
    Beat,
    Cancel,
    Crashed,
    Figures,
    Finished,
    Message,
    Pulse,
    Ready,
    Refused,
    Returned,
    SetCap,
    Shard,
    WorkerState,
)
from worker.held import Decision, Held, ModelRef, Report

#: Engines of one model that may end in a row without having begun a row; then its rows are given back.
MAX_FAILURES = 3
#: The cap reckoned with until an engine has said its own.
PROVISIONAL_CAP = 16


@dataclass(slots=True, kw_only=True)
class Holding:
    """One worker's shards. The caller sees to it that one thread at a time is inside."""

    #: rows decoding together at most, as the coordinator asked; 0 is the engine's own choice
    cap: int = 0
    stopping: bool = False
    #: why no work is taken for now, in a word; empty while it is
    paused: str = ""
    #: by shard id, in order of arrival
    shards: dict[str, Held] = field(default_factory=dict)
    #: shard of each owed row
    shard_of: dict[int, str] = field(default_factory=dict)
    #: new tokens so far of each row admitted and not ended; all of them owed
    inside: dict[int, int] = field(default_factory=dict)
    #: rows whose prompts were started last
    latest: tuple[int, ...] = ()
    #: what the present engine process was started for, None when there is none
    model: ModelRef | None = None
    #: what the present engine said of itself once loaded
    ready: Ready | None = None
    figures: Figures = field(default_factory=Figures)
    #: the present engine's last sign of life, None before one
    pulse: Pulse | None = None
    #: engines in a row that ended without having begun a row
    failures: int = 0

    # -- from the queue and the coordinator --------------------------------------------------------

    def take(self, shard: Shard) -> Decision:
        """A shard from the queue; one taken after `stop` or in a pause goes straight back."""
        ids = {row.id for row in shard.rows}
        if self.stopping or self.paused:
            self.shards[shard.id] = Held(shard=shard, owed=set())
            return Decision(to_coordinator=(Returned(rows=tuple(sorted(ids))),))
        computing = {row for row in ids if row in self.shard_of and self.shards[self.shard_of[row]].given}
        self._release(ids & self.shard_of.keys())  # the newer shard owes them now
        held = Held(shard=shard, owed=ids)
        self.shards[shard.id] = held
        self.shard_of.update(dict.fromkeys(ids, shard.id))
        if computing:
            return Decision(to_engine=(Cancel(rows=tuple(sorted(computing))), *self._give()))
        return Decision(to_engine=self._give())

    def cancel(self, rows: Sequence[int]) -> Decision:
        """Forgets these rows; nothing is owed for them."""
        known = self._computing(rows)
        self._release(rows)
        return Decision(to_engine=(Cancel(rows=known), *self._give()) if known else self._give())

    def drop(self, shard_id: str) -> Decision:
        """Forgets a shard that the coordinator took away."""
        held = self.shards.get(shard_id)
        return self.cancel(tuple(held.owed)) if held else Decision()

    def set_cap(self, rows: int) -> Decision:
        """From now on, and for the engines to come."""
        self.cap = rows
        return Decision(to_engine=(SetCap(rows=rows),) if self.ready else ())

    def stop(self) -> Decision:
        """Takes no more, gives back what only waits; rows in the batch go on."""
        self.stopping = True
        return self._give_back()

    def pause(self, reason: str) -> Decision:
        """The same for as long as there is a reason; an empty one ends it."""
        self.paused = reason
        return self._give_back() if reason else Decision()

    # -- from the engine ---------------------------------------------------------------------------

    def engine_started(self, model: ModelRef) -> None:
        """A process was started for `model`; it says Ready once loaded."""
        self.model = model
        self.ready = self.pulse = None

    def heard(self, message: Message) -> Decision:
        """A message of the engine."""
        match message:
            case Ready():
                self.ready = message
                caps = (SetCap(rows=self.cap),) if self.cap else ()
                return Decision(to_engine=(*caps, *self._give()))
            case Refused(reason=reason):
                return self._return_all(reason)
            case Admitted(rows=rows):
                self.failures = 0
                self.latest = tuple(row for row in rows if row in self.shard_of)
                self.inside.update(dict.fromkeys(self.latest, 0))
            case Pulse(running=running, figures=figures):
                self.pulse = message
                self.inside.update((row, tokens) for row, tokens in running if row in self.inside)
                self.figures = figures
            case Finished(rows=results):
                kept = tuple(result for result in results if result.id in self.shard_of)
                self._release(result.id for result in kept)
                return Decision(to_coordinator=kept, to_engine=self._give())
            case _:
                pass  # nothing else comes from an engine of this version
        return Decision()

    def engine_gone(self, reason: str, *, expected: bool = False) -> Decision:
        """The process ended, by our wish when `expected`; what was in the batch is suspect, the rest waits on."""
        suspects = tuple(self.inside)
        crash = Crashed(
            rows=suspects,
            latest=tuple(row for row in self.latest if row in self.inside),
            reason=reason,
            cap=self._cap_in_force(),
        )
        was_ready, model = self.ready is not None, self.model
        self._release(suspects)
        self.model = self.ready = self.pulse = None
        self.latest = ()
        for held in self.shards.values():
            held.given = False
        if expected:
            return Decision()
        self.failures = 0 if suspects else self.failures + 1
        reports: tuple[Report, ...] = (crash,) if was_ready else ()
        if self.failures >= MAX_FAILURES and model is not None:
            self.failures = 0
            told = f"the engine failed {MAX_FAILURES} times before it began a row ({reason}): see engine.log"
            reports = (*reports, *self._return_all(told, model).to_coordinator)
        return Decision(to_coordinator=reports)

    # -- what is so --------------------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        """Rows owed that are not in the batch."""
        return len(self.shard_of) - len(self.inside)

    def wants_more(self) -> bool:
        """True while the rows that wait would not fill the batch anew: equal rows may all end in one step."""
        low_water = self._cap_in_force() or PROVISIONAL_CAP
        return not self.stopping and not self.paused and self.waiting < low_water

    def wanted(self) -> ModelRef | None:
        """The model an engine should have now: another one's turn comes when nothing is owed by the present one.

        None in a pause once nothing is owed: the owner of the machine has its memory back.
        """
        if any(held.given and held.owed for held in self.shards.values()):
            return self.model
        oldest = next((held.shard for held in self.shards.values() if held.owed), None)
        if oldest is not None:
            return ModelRef.of(oldest)
        return None if self.paused else self.model

    def done(self) -> list[str]:
        """Ids of the shards that owe nothing."""
        return [shard_id for shard_id, held in self.shards.items() if not held.owed]

    def forget(self, shard_id: str) -> None:
        """Lets go of a shard that owes nothing."""
        if not self.shards[shard_id].owed:
            del self.shards[shard_id]

    def state(self) -> WorkerState:
        """In a word."""
        if self.stopping:
            return WorkerState.STOPPING
        if self.paused:
            return WorkerState.PAUSED
        if self.ready is None and (self.model is not None or self.shard_of):
            return WorkerState.LOADING
        if self.pulse is not None and self.pulse.measuring:
            return WorkerState.MEASURING
        if not self.shard_of:
            return WorkerState.IDLE
        throttled = self.pulse is not None and self.pulse.throttled
        return WorkerState.THROTTLED if throttled else WorkerState.WORKING

    def beat(self, *, worker: str, nonce: str, epoch: str) -> Beat:
        """All of it, as the lease tells it."""
        return Beat(
            worker=worker,
            nonce=nonce,
            epoch=epoch,
            state=self.state(),
            shards=tuple(self.shards),
            running=tuple(self.inside.items()),
            waiting=self.waiting,
            engine=self.ready,
            figures=self.figures,
            pace=self.pulse.pace if self.pulse else 0.0,
            note=self.paused,
        )

    def validate(self) -> None:
        """Asserts what must always hold."""
        owed = {row: shard_id for shard_id, held in self.shards.items() for row in held.owed}
        assert owed == self.shard_of, "each owed row is known under the one shard that owes it"
        assert self.inside.keys() <= owed.keys(), "rows in the batch are owed"
        assert self.ready is None or self.model is not None, "only a process can be ready"
        for held in self.shards.values():
            assert not held.given or self.ready is not None, "rows are given to a loaded engine only"

    # -- inside ------------------------------------------------------------------------------------

    def _give_back(self) -> Decision:
        rest = tuple(sorted(self.shard_of.keys() - self.inside.keys()))
        decision = self.cancel(rest)
        return replace(decision, to_coordinator=(Returned(rows=rest),)) if rest else decision

    def _give(self) -> tuple[Shard, ...]:
        """Shards for the engine, in order of arrival, up to the first that needs another model."""
        given: list[Shard] = []
        if self.ready is None:
            return ()
        for held in self.shards.values():
            if held.given or not held.owed:
                continue
            if ModelRef.of(held.shard) != self.model:
                break
            held.given = True
            given.append(replace(held.shard, rows=tuple(row for row in held.shard.rows if row.id in held.owed)))
        return tuple(given)

    def _computing(self, rows: Sequence[int]) -> tuple[int, ...]:
        owed = [row for row in rows if row in self.shard_of]
        return tuple(row for row in owed if self.shards[self.shard_of[row]].given)

    def _release(self, rows: Iterable[int]) -> None:
        for row in rows:
            shard_id = self.shard_of.pop(row, None)
            if shard_id is not None:
                self.shards[shard_id].owed.discard(row)
            self.inside.pop(row, None)

    def _return_all(self, reason: str, model: ModelRef | None = None) -> Decision:
        ref = model or self.model
        rows = [row for held in self.shards.values() if ModelRef.of(held.shard) == ref for row in held.owed]
        self._release(rows)
        return Decision(to_coordinator=(Returned(rows=tuple(rows), reason=reason),) if rows else ())

    def _cap_in_force(self) -> int:
        if self.ready is None:
            return self.cap
        running = {self.shard_of[row] for row in self.inside}
        caps = (self.ready.cap, self.cap, *(self.shards[shard_id].shard.cap for shard_id in running))
        return min((cap for cap in caps if cap), default=0)
