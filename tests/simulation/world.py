"""A whole fleet on a simulated clock: the real controller, ledger, watch and worker's books; broker, wire and engines
are simulated, and everything breaks at moments that one seed decides.

After each turn what must hold is checked (I1-I10 of the design). A violation names its seed, which replays the run:

    python -m tests.simulation.world SEED...
"""

from __future__ import annotations

import random
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from coordinator.broker.broker import Broker as RealBroker
from coordinator.broker.dispatch import Dispatch
from coordinator.control.controller import Controller
from coordinator.control.job_run import JobRun
from coordinator.control.member import Member
from coordinator.control.turn import Turn
from coordinator.control.watch import Watch
from coordinator.ledger.ledger import Ledger
from coordinator.records import JobRecord, NewRow
from fleet.config import StateDir
from fleet.job import JobState, RequestState, RowState
from tests.ledgers import request, spec
from tests.simulation.broker import Broker, CoordinatorEnd, Crash, Wire
from tests.simulation.machine import Machine

STEP_S = 0.5
#: Faults begin to happen until then; after that only those go on that last, seconds.
FAULTS_S = 90.0
#: Both jobs of a run are at work until then, mostly, seconds.
EARLY_S = 15.0
#: A run that is not over by then makes no progress (I7), seconds.
END_S = 1200.0
#: A dead worker's rows are back in the pool by then (I8), seconds.
POOL_S = 14.0


class ViolationError(AssertionError):
    """Something that must hold does not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What one seed decides."""

    seed: int
    workers: int
    requests: int
    #: a fault begins in a turn this often
    fault_rate: float
    #: of the calls to the broker, on both sides
    trouble: float
    poison: int
    two_jobs: bool
    #: one of the two is cancelled then, seconds
    cancel_s: float | None

    @classmethod
    def of(cls, seed: int) -> Plan:
        """Quiet wires in every second run, since only there times are promised; poison in every third."""
        draw = random.Random(f"plan {seed}")
        cancelled = random.Random(f"cancel {seed}")
        return cls(
            seed=seed,
            workers=draw.randint(1, 4),
            requests=draw.randint(8, 30),
            fault_rate=draw.choice((0.0, 0.02, 0.06)),
            trouble=draw.choice((0.0, 0.05)),
            poison=draw.choice((0, 0, 1)),
            two_jobs=draw.random() < 0.3,
            cancel_s=cancelled.choice((None, cancelled.uniform(0, EARLY_S), cancelled.uniform(0, FAULTS_S))),
        )


class World:
    """One run."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        self.plan = plan
        self.now = 0.0
        self.faults: Counter[str] = Counter()
        self._draw = random.Random(plan.seed)
        self._state = StateDir(folder)
        self.broker = Broker(lambda: self.now)
        self._names = [f"mac{n}" for n in range(plan.workers)]
        self._wires = {
            name: Wire(broker=self.broker, draw=self._draw, clock=lambda: self.now, trouble=plan.trouble)
            for name in self._names
        }
        #: the process of each worker, None while there is none, and when there will be one
        self.machines: dict[str, Machine | None] = {}
        self._back_at: dict[str, float] = {}
        self._started = 0
        #: None while the coordinator is dead
        self.controller: Controller | None = None
        self._ledger: Ledger | None = None
        self._turn: Turn | None = None
        self._restart_at = 0.0
        self._cancel_at = plan.cancel_s
        self._jobs: list[JobRecord] = []
        #: what is told about rows: the first result of each that was committed, and its crashes alone in a batch
        self._first: dict[int, str] = {}
        self.alone: Counter[int] = Counter()
        self.admitted: Counter[int] = Counter()
        self._since: dict[str, float | None] = {}
        #: row -> the only worker that had it, in its batch, when the coordinator was started anew
        self._kept: dict[int, str] = {}
        self._poison: frozenset[int] = frozenset()
        self._crash_armed = ""
        self._epoch = ""

    # -- the run -----------------------------------------------------------------------------------

    def run(self) -> None:
        """To the end; ViolationError when something is not as it must be."""
        self._begin()
        try:
            while not self._over():
                self._step()
                if self.now > END_S:
                    raise self._violation(f"I7: no end after {END_S:.0f} s, {self._open()} requests are open")
            self._check_end()
        finally:
            if self._ledger is not None:
                self._ledger.close()

    def _begin(self) -> None:
        self._ledger = ledger = Ledger.open(self._state)
        for number in range(1 + self.plan.two_jobs):
            job, _ = ledger.begin_job(spec(output=f"/out-{number}.jsonl"))
            ledger.add_requests(job.id, [self._request(n) for n in range(self.plan.requests)])
            ledger.finish_intake(job.id, "input")
            self._jobs.append(ledger.job(job.id).record)
        rows = sum(len(some) for some in ledger.open_rows(self._jobs[0].id))
        self._poison = frozenset(self._draw.sample(range(1, rows + 1), self.plan.poison))
        for name in self._names:
            self._start_machine(name)
        self.broker.restart()
        self._start_coordinator()

    def _wanted(self) -> list[JobRecord]:
        """The jobs that nobody has cancelled."""
        assert self._ledger is not None
        states = {job.id: self._ledger.job(job.id).record.state for job in self._jobs}
        return [job for job in self._jobs if states[job.id] is JobState.RUNNING]

    def _request(self, number: int) -> Any:
        """One row or several, some of which other requests and the other job have, too."""
        rows = [self._draw.randrange(3 * self.plan.requests) for _ in range(self._draw.choice((1, 1, 1, 3)))]
        return request(f"r{number}", *rows, line=number + 1)

    def _over(self) -> bool:
        controller = self.controller
        return controller is not None and all(run.done() for run in controller.runs.values())

    def _open(self) -> int:
        return sum(run.counts().open for run in self.controller.runs.values()) if self.controller else -1

    def _step(self) -> None:
        self.now += STEP_S
        for wire in self._wires.values():
            wire.deliver_late()
        if self.now < FAULTS_S and self._draw.random() < self.plan.fault_rate:
            self._draw.choice(self._possible())()
        for name, back_at in list(self._back_at.items()):
            if self.now >= back_at:
                del self._back_at[name]
                self._start_machine(name)
        if self.controller is None and self.now >= self._restart_at:
            self._start_coordinator()
        self._coordinate()
        for machine in self.machines.values():
            if machine is not None and machine.awake:
                machine.turn(STEP_S)
        self._check_turn()

    def _coordinate(self) -> None:
        if self._turn is None or self.controller is None:
            return
        try:
            if self._cancel_at is not None and self.now >= self._cancel_at:
                self._cancel_job()
            self._turn.once()
            if any(run.error for run in self.controller.runs.values()):
                raise self._violation("a job was given up")
        except Crash as crash:
            self.faults[f"coordinator {crash}"] += 1
            self._end_coordinator()

    # -- processes ---------------------------------------------------------------------------------

    def _start_machine(self, name: str) -> None:
        self._started += 1
        self.machines[name] = Machine(
            name,
            self._wires[name],
            nonce=f"n{self._started}",
            clock=lambda: self.now,
            draw=self._draw,
            speed=self._draw.choice((2.0, 4.0, 8.0)),
            poison=self._poison,
            admitted=lambda rows: self._note_admitted(name, rows),
            crashed=self._note_crash,
        )

    def _start_coordinator(self) -> None:
        """As after a kill -9: the ledger is all it has, and its broker, which died with it, is another."""
        if self._ledger is None:
            self._ledger = Ledger.open(self._state)
            self.broker.restart()
        end = CoordinatorEnd(self.broker, self._draw, self.plan.trouble, self._dies)
        controller = Controller(
            ledger=self._ledger, dispatch=cast(Dispatch, end), tell=lambda _: None, clock=lambda: self.now, lasting=True
        )
        for name in self._names:
            controller.add_member(Member(id=name))
        for job in self._wanted():
            run = JobRun(job, self._ledger, _no_reduce, feed=None, claim=controller.claim)
            run.take_up()
            controller.add_job(run)
        self._watch_commits(self._ledger)
        watch = Watch(controller, cast(RealBroker, self.broker), wall=lambda: self.now)
        self.controller, self._turn = controller, Turn(controller, watch)
        self._since.clear()
        self._kept = self._running()

    def _watch_commits(self, ledger: Ledger) -> None:
        commit = ledger.commit

        def watched(worker: str, results: Any) -> list[int]:
            reducible = commit(worker, results)
            for result in results:
                self._first.setdefault(result.id, result.text)
                self._kept.pop(result.id, None)
            return reducible

        ledger.commit = watched  # type: ignore[method-assign]

    def _end_coordinator(self) -> None:
        assert self._ledger is not None
        self._ledger.close()
        self._ledger = self.controller = self._turn = None
        self.broker.end()
        self._restart_at = self.now + self._draw.uniform(0.5, 20.0)

    def _running(self) -> dict[int, str]:
        """Each row that is in the batch of one worker, which can be heard, and with no other."""
        machines = [machine for machine in self.machines.values() if machine is not None]
        held = Counter(row for machine in machines for row in machine.desk._holding.shard_of)
        able = [machine for machine in machines if machine.awake and self._wires[machine.name].open and machine.engine]
        return {row: each.name for each in able if each.engine for row in each.engine.running if held[row] == 1}

    def _disturb(self, name: str) -> None:
        """A worker suffers something: what it has may be given to others."""
        self._kept = {row: keeper for row, keeper in self._kept.items() if keeper != name}

    def _dies(self, label: str) -> bool:
        if self._crash_armed and label.startswith(self._crash_armed):
            self._crash_armed = ""
            return True
        return False

    def _note_admitted(self, name: str, rows: Iterable[int]) -> None:
        self.admitted.update(rows := list(rows))
        if self.controller is None or self.plan.trouble:
            return
        assignments = self.controller.assignments
        for row in rows:
            keeper = self._kept.get(row)
            copied = keeper != name and keeper and assignments.has(keeper, row) and assignments.has(name, row)
            if keeper and not copied:
                raise self._violation(f"I10: row {row} ran on {keeper} all the time and is begun again on {name}")

    def _note_crash(self, rows: tuple[int, ...]) -> None:
        self._kept = {row: keeper for row, keeper in self._kept.items() if row not in rows}
        if len(rows) == 1:
            self.alone.update(rows)

    # -- faults ------------------------------------------------------------------------------------

    def _possible(self) -> list[Callable[[], None]]:
        alive = [machine for machine in self.machines.values() if machine is not None]
        faults: list[Callable[[], None]] = [self._kill_broker, self._wipe_broker, self._arm_crash]
        if self.controller is not None:
            faults.append(self._kill_coordinator)
        if alive:
            machine = self._draw.choice(alive)
            faults += [
                lambda: self._kill(machine),
                lambda: self._put_to_sleep(machine),
                lambda: self._cut(machine),
                lambda: self._crash_engine(machine),
            ]
        return faults

    def _kill_broker(self) -> None:
        self.faults["broker killed"] += 1
        self.broker.end()

    def _wipe_broker(self) -> None:
        if self.broker.up:
            self.faults["broker wiped"] += 1
            self.broker.wipe()

    def _kill_coordinator(self) -> None:
        self.faults["coordinator killed"] += 1
        self._end_coordinator()

    def _cancel_job(self) -> None:
        """Its rows are forgotten, but for those that the other job needs, too."""
        assert self.controller is not None
        self._cancel_at = None
        if len(self.controller.runs) > 1:
            self.faults["job cancelled"] += 1
            job = self._draw.choice(list(self.controller.runs))
            self.controller.ledger.end_job(job, JobState.CANCELLED)
            self.controller.drop_job(job)

    def _arm_crash(self) -> None:
        moment = self._draw.choice(("before", "after", "twice"))
        call = self._draw.choice(("send", "heard", "delete", "sights", "purge", "take_back"))
        self._crash_armed = f"{moment} {call}"

    def _note_loss(self, machine: Machine) -> None:
        """A Mac that goes in the middle of a trial counts against the row on trial, which may be why it went."""
        self._disturb(machine.name)
        if machine.engine is not None and machine.engine.alone:
            self._note_crash(tuple(machine.engine.running))

    def _kill(self, machine: Machine) -> None:
        self.faults["worker killed"] += 1
        self._note_loss(machine)
        self.machines[machine.name] = None
        self._back_at[machine.name] = self.now + self._draw.uniform(0.5, 40.0)

    def _put_to_sleep(self, machine: Machine) -> None:
        self.faults["worker asleep"] += 1
        self._note_loss(machine)
        machine.sleeps_until = self.now + self._draw.choice((5.0, 13.0, 30.0, 70.0))

    def _cut(self, machine: Machine) -> None:
        self.faults["worker cut off"] += 1
        self._note_loss(machine)
        self._wires[machine.name].cut_until = self.now + self._draw.choice((2.0, 8.0, 20.0, 60.0))

    def _crash_engine(self, machine: Machine) -> None:
        # One row alone is left in peace: two such accidents would rightly be held against it.
        if machine.engine is not None and len(machine.engine.running) != 1:
            self.faults["engine crashed"] += 1
            machine.crash_engine("signal 9")

    # -- what must hold ----------------------------------------------------------------------------

    def _check_turn(self) -> None:
        if self.controller is None:
            return
        self.controller.assignments.validate()
        if self.plan.trouble:
            return
        if self.broker.epoch != self._epoch:  # the leases are gone with the old one: all begin to count anew
            self._epoch = self.broker.epoch
            self._since.clear()
        for name in self._names:
            self._check_back_in_time(name)

    def _check_back_in_time(self, name: str) -> None:
        """I8: the rows of a worker that is gone are back in the pool in time."""
        assert self.controller is not None
        machine = self.machines[name]
        there = machine is not None and machine.awake and self._wires[name].open
        if there or not self.broker.up:
            self._since[name] = None
            return
        since = self._since.get(name)
        self._since[name] = since = self.now if since is None else since
        owed = sum(len(flight.rows) for flight in self.controller.assignments.of(name))
        if owed and self.now - since > POOL_S + STEP_S:
            raise self._violation(f"I8: {owed} rows are with {name}, which is gone for {self.now - since:.1f} s")

    def _check_end(self) -> None:
        assert self._ledger is not None
        self._ledger.validate()
        for (row,) in self._ledger._store.rows("SELECT id FROM row WHERE state = ?", (int(RowState.QUARANTINED),)):
            if self.alone[row] < 2:
                raise self._violation(f"I5: row {row} is quarantined, and ended {self.alone[row]} engines alone")
        for job in self._wanted():
            answers = list(self._ledger.answers(job.id))
            names = [answer.custom_id for answer in answers]
            if names != [f"r{n}" for n in range(self.plan.requests)]:
                raise self._violation(f"I2: the output's ids are {names}")
            for answer in answers:
                self._check_answer(answer)
            self._ledger.end_job(job.id, JobState.FINISHED)

    def _check_answer(self, answer: Any) -> None:
        if answer.state is RequestState.DONE:
            for part in answer.parts:
                row = int(part.text.partition(" ")[0])
                if part.text != self._first.get(row):
                    raise self._violation(
                        f"I3, I9: row {row} was committed as {self._first.get(row)!r}, is {part.text!r}"
                    )
        elif answer.state is not RequestState.QUARANTINED:
            raise self._violation(f"I1: {answer.custom_id} is {answer.state.name}: {answer.error}")

    def _violation(self, text: str) -> ViolationError:
        return ViolationError(
            f"seed {self.plan.seed} at {self.now:.1f} s: {text}; faults: {dict(self.faults)}; {self.plan}"
        )


def _no_reduce(*_: Any, **__: Any) -> tuple[NewRow, ...]:
    raise AssertionError("nothing is to be reduced here")


def run(seed: int, folder: Path) -> World:
    """The run that `seed` decides; ViolationError when something does not hold."""
    world = World(Plan.of(seed), folder)
    world.run()
    return world


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        for seed in map(int, sys.argv[1:]):
            print(f"seed {seed}: {dict(run(seed, Path(folder) / str(seed)).faults)}")
