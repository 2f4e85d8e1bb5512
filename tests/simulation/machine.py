"""A simulated Mac: the worker's own books, heartbeat, pump and control, with an agent and an engine that take turns."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, cast

import redis

from fleet import codec
from fleet.config import BEAT_S, FLUSH_S
from fleet.job import Finish
from fleet.messages import Admitted, Cancel, Figures, Finished, Message, Pulse, Ready, RowResult, RowWork, SetCap, Shard
from tests.simulation.broker import Wire, WorkerClient
from worker.agent import Agent, Ticket, Tickets
from worker.control import Control
from worker.desk import Desk
from worker.heartbeat import Heartbeat
from worker.pump import Pump

#: How long an engine takes to load its model, seconds.
LOAD_S = 2.0
CAP = 4
CONTEXT_TOKENS = 4096


@dataclass(frozen=True, slots=True)
class Job:
    """RQ's record of a shard, as much of it as a ticket's owner looks at."""

    key: str


@dataclass(slots=True, kw_only=True)
class Engine:
    """A process with a model in it. It computes `speed` tokens of each row a second."""

    ready_at: float
    inbox: list[Message] = field(default_factory=list)
    ready: bool = False
    cap: int = 0
    #: row -> (work, shard), in order of arrival
    waiting: dict[int, tuple[RowWork, Shard]] = field(default_factory=dict)
    #: row -> tokens still to make
    running: dict[int, float] = field(default_factory=dict)
    #: rows of an exclusive shard are alone in the batch
    alone: str = ""
    figures: Figures = field(default_factory=Figures)


class Machine:
    """One process of one worker; after a kill there is another, with another nonce and nothing of this one."""

    def __init__(
        self,
        name: str,
        wire: Wire,
        *,
        nonce: str,
        clock: Callable[[], float],
        draw: random.Random,
        speed: float,
        poison: frozenset[int],
        admitted: Callable[[Iterable[int]], None],
        crashed: Callable[[tuple[int, ...]], None],
    ) -> None:
        self.name = name
        self.desk = Desk(name, nonce)
        self.engine: Engine | None = None
        #: asleep until then, seconds
        self.sleeps_until = 0.0
        self._wire = wire
        self._clock = clock
        self._draw = draw
        self._speed = speed
        self._poison = poison
        self._admitted = admitted
        self._crashed = crashed
        client = cast(redis.Redis, WorkerClient(wire))
        self._tickets = Tickets()
        self._heartbeat = Heartbeat(self.desk, self._tickets, client)
        self._control = Control(self.desk, client)
        self._pump = Pump(self.desk, self._tickets, client, lambda: cast(Agent, self))
        self._epoch = ""
        self._next = dict.fromkeys(("beat", "pump", "control"), 0.0)

    @property
    def awake(self) -> bool:
        return self._clock() >= self.sleeps_until

    def turn(self, step_s: float) -> None:
        """Everything it does in so many seconds, in whatever order."""
        self._turn_engine(step_s)
        threads = [
            lambda: self._due("beat", BEAT_S) and self._heartbeat.beat(),
            lambda: self._due("pump", FLUSH_S / 2) and self._pump.turn(),
            lambda: self._due("control", 1.0) and self._control.read(),
            self._take_shards,
        ]
        self._draw.shuffle(threads)
        for thread in threads:
            try:
                thread()
            except redis.RedisError:
                self._epoch = ""  # as `work` of an RQ worker, which ends with its connection
        self.desk.shards()  # validates

    def _due(self, name: str, period_s: float) -> bool:
        if self._clock() < self._next[name]:
            return False
        self._next[name] = self._clock() + period_s * self._draw.uniform(0.7, 1.0)
        return True

    # -- the agent ---------------------------------------------------------------------------------

    def _take_shards(self) -> None:
        if not self.desk.epoch or self.desk.stopping:
            return
        if self._epoch != self.desk.epoch:  # another RQ worker, which looks for what was left half taken
            for shard_id in self._wire.call(("TAKING", self.name))[0]:
                if not self.desk.holds(shard_id):
                    self._take(shard_id)
            self._epoch = self.desk.epoch
        while self.desk.await_room(0.0):
            (shard_id,) = self._wire.call(("LMOVE", self.name))
            if shard_id is None:
                return
            self._take(shard_id)

    def _take(self, shard_id: str) -> None:
        (data,) = self._wire.call(("HGET", shard_id))
        if data is None:  # deleted meanwhile
            self._wire.call(("TAKEN", self.name, shard_id))
            return
        shard = codec.decode(data)
        assert isinstance(shard, Shard)
        self._control.catch_up()
        self._tickets.add(shard.id, Ticket(job=Job(shard.id), queue=cast(Any, None), execution=cast(Any, None)))
        self.desk.take(shard)
        self._heartbeat.beat()
        self._wire.call(("TAKEN", self.name, shard_id))

    def complete(self, ticket: Ticket) -> None:
        """As the RQ worker does when all results of a shard are in the stream."""
        self._wire.call(("FINISH", ticket.job.key), ("TAKEN", self.name, ticket.job.key))

    def keep_alive(self, tickets: Iterable[Ticket]) -> None:
        """Nothing: RQ's own record does not expire here."""

    # -- the engine --------------------------------------------------------------------------------

    def crash_engine(self, why: str) -> None:
        """Its process ends; the rows in its batch are suspects."""
        if self.engine is not None:
            self._crashed(tuple(self.engine.running))
            self.engine = None
            self.desk.engine_gone(why, expected=False)

    def _turn_engine(self, step_s: float) -> None:
        engine = self.engine
        if engine is None:
            wanted = self.desk._holding.wanted()
            if wanted is not None:
                self.engine = engine = Engine(ready_at=self._clock() + LOAD_S)
                self.desk.engine_started(wanted, engine.inbox.append)
            return
        if not engine.ready:
            if self._clock() < engine.ready_at:
                return
            engine.ready = True
            self.desk.heard(
                Ready(model_hash="ab", cap=CAP, kv_bytes=1, budget_bytes=1 << 20, context_tokens=CONTEXT_TOKENS)
            )
        self._read(engine)
        self._admit(engine)
        if engine.running.keys() & self._poison and self._draw.random() < 0.5:
            self.crash_engine("signal 11")
            return
        self._compute(engine, step_s)

    def _read(self, engine: Engine) -> None:
        for message in engine.inbox:
            match message:
                case Shard():
                    engine.waiting.update({row.id: (row, message) for row in message.rows})
                case Cancel(rows=rows):
                    for row in rows:
                        engine.waiting.pop(row, None)
                        engine.running.pop(row, None)
                case SetCap(rows=rows):
                    engine.cap = rows
        engine.inbox.clear()

    def _admit(self, engine: Engine) -> None:
        if not engine.running:
            engine.alone = ""
        joining = []
        for row, (work, shard) in list(engine.waiting.items()):
            together = [*engine.running, *joining]
            if len(together) >= (engine.cap or CAP):
                break
            mine = shard.id if shard.exclusive else ""
            if together and mine != engine.alone:
                break
            engine.alone = mine
            del engine.waiting[row]
            joining.append(row)
            engine.running[row] = float(work.max_tokens)
        if joining:
            self._admitted(joining)
            self.desk.heard(Admitted(rows=tuple(joining)))

    def _compute(self, engine: Engine, step_s: float) -> None:
        for row in engine.running:
            engine.running[row] -= self._speed * step_s
        ended = [row for row, left in engine.running.items() if left <= 0]
        for row in ended:
            del engine.running[row]
        old = engine.figures
        engine.figures = Figures(
            output_tokens=old.output_tokens + 4 * len(ended),
            prompt_tokens=old.prompt_tokens + 3 * len(ended),
            steps=old.steps + 1,
            decode_s=old.decode_s + step_s,
            prefill_s=old.prefill_s + 0.01,
        )
        self.desk.heard(
            Pulse(
                running=tuple((row, 1) for row in engine.running), waiting=len(engine.waiting), figures=engine.figures
            )
        )
        if ended:
            self.desk.heard(Finished(rows=tuple(self._result(row) for row in ended)))

    def _result(self, row: int) -> RowResult:
        # Each computation of a row has another answer, so that a result that changes is seen.
        text = f"{row} by {self.desk.nonce} at {self._clock():.2f}"
        return RowResult(id=row, text=text, finish=Finish.STOP, input_tokens=3, output_tokens=4)
