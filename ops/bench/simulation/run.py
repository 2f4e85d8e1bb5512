"""The simulated coordinator's clock: turns, results and beats on their way, machines that come and die."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from fleet.config import BEAT_S, FLUSH_S, LEASE_TTL_S
from fleet.messages import Figures
from ops.bench.simulation.machine import FOREVER, Fate, Machine, Parcel
from ops.bench.simulation.profiles import Profile
from ops.bench.simulation.workload import Workload

#: From a decision to the shard in the worker's queue, seconds.
TRIP_S = 0.3
#: A run that takes this many times longer than its bound has hung.
HUNG = 100.0
#: Parts of a period by which workers are out of step: the golden ratio spreads any number evenly.
GOLDEN = 0.6180339887


class Policy(Protocol):
    """Decides in a simulation; what it may see comes in by these calls."""

    def begin(self, simulation: Simulation) -> None:
        """Before the first turn."""

    def joined(self, worker: str, profile: Profile) -> None:
        """A worker is there. Of its profile only cap and memory may be looked at."""

    def ended(self, worker: str, rows: Sequence[tuple[int, int]], now_s: float) -> None:
        """Rows with their tokens, recorded now and never before."""

    def beat(self, worker: str, machine: Machine, figures: Figures, now_s: float) -> None:
        """A worker told how it is; of the machine only what a beat carries may be looked at."""

    def lost(self, worker: str) -> None:
        """A worker's lease ran out."""

    def turn(self, now_s: float) -> None:
        """Decide."""


@dataclass(slots=True)
class Outcome:
    """How a run went."""

    makespan_s: float
    #: rows that a worker ended and another had ended before
    twice: int = 0
    copies: int = 0
    #: rows taken back from one worker for another
    moved: int = 0
    #: tokens of rows that were cancelled or ended twice
    wasted_tokens: float = 0.0
    #: worker -> (seconds, rows decoding)
    traces: dict[str, list[tuple[float, int]]] = field(default_factory=dict)


class Simulation:
    """One run of a policy over a workload."""

    def __init__(
        self,
        workload: Workload,
        profiles: Sequence[Profile],
        fates: Sequence[Fate],
        policy: Policy,
        *,
        turn_s: float = 0.5,
        trace: bool = False,
    ) -> None:
        self.workload = workload
        self._prompts = workload.prompts.tolist()
        self._answers = workload.answers.tolist()
        self._policy = policy
        self._turn_s = turn_s
        self._trace = trace
        self._coming = sorted(zip(profiles, fates, strict=True), key=lambda pair: pair[1].begins_s)
        self.machines: dict[str, Machine] = {}
        #: worker -> (next flush, next beat), seconds
        self._due: dict[str, tuple[float, float]] = {}
        self._recorded = bytearray(len(workload))
        self._left = len(workload)
        self.outcome = Outcome(makespan_s=0.0)
        self.now_s = 0.0

    # -- what a policy does ------------------------------------------------------------------------

    def send(self, worker: str, shard: str, rows: Sequence[int]) -> None:
        """Puts a shard at the end of a worker's queue."""
        parcel = Parcel(shard, self.now_s + TRIP_S, [(row, self._prompts[row], self._answers[row]) for row in rows])
        self.machines[worker].queue.append(parcel)

    def take_back(self, worker: str, shard: str) -> bool:
        """Takes a shard out of a queue; False when the agent has it."""
        queue = self.machines[worker].queue
        for parcel in queue:
            if parcel.id == shard:
                queue.remove(parcel)
                return True
        return False

    def cancel(self, worker: str, rows: Sequence[int]) -> None:
        """Makes a worker forget rows."""
        if worker in self.machines:
            self.machines[worker].cancel(rows)

    # -- the clock ---------------------------------------------------------------------------------

    def run(self, bound_s: float) -> Outcome:
        """Until every row is recorded. Raises AssertionError when that takes far too long."""
        self._policy.begin(self)
        while self._left:
            assert self.now_s < HUNG * bound_s, f"{self._left} rows are left after {self.now_s:.0f} s"
            self._arrivals()
            for worker, machine in list(self.machines.items()):
                machine.advance(self.now_s)
                self._hear(worker, machine)
            if self._left:
                self._policy.turn(self.now_s)
                self.now_s += self._turn_s
        self.outcome.makespan_s = self.now_s
        for machine in self.machines.values():
            self.outcome.wasted_tokens += machine.wasted_tokens + sum(machine.running().values())
            self._keep_trace(machine)
        return self.outcome

    def _arrivals(self) -> None:
        while self._coming and self._coming[0][1].begins_s <= self.now_s:
            profile, fate = self._coming.pop(0)
            machine = Machine(profile.name, profile, fate)
            if self._trace:
                machine.trace = []
            late = len(self.machines) * GOLDEN % 1.0
            self.machines[machine.id] = machine
            self._due[machine.id] = (self.now_s + late * FLUSH_S, self.now_s + late * BEAT_S)
            self._policy.joined(machine.id, profile)

    def _hear(self, worker: str, machine: Machine) -> None:
        flush_s, beat_s = self._due[worker]
        dead = machine.fate.dies_s <= self.now_s
        if self.now_s >= flush_s:
            sent_s = min(flush_s, machine.fate.dies_s)
            if machine.outbox and not (dead and flush_s > machine.fate.dies_s):
                self._record(worker, machine, sent_s)
            flush_s += FLUSH_S
        if dead:
            if self.now_s >= machine.fate.dies_s + LEASE_TTL_S:
                self.outcome.wasted_tokens += sum(machine.running().values())
                self._keep_trace(machine)
                del self.machines[worker], self._due[worker]
                self._policy.lost(worker)
                return
        elif self.now_s >= beat_s:
            self._policy.beat(worker, machine, machine.figures(), self.now_s)
            beat_s += BEAT_S
        self._due[worker] = (flush_s, beat_s)

    def _record(self, worker: str, machine: Machine, sent_s: float) -> None:
        sent = [entry for entry in machine.outbox if entry[0] <= sent_s]
        machine.outbox = [entry for entry in machine.outbox if entry[0] > sent_s]
        new = []
        for _, row, tokens in sent:
            if self._recorded[row]:
                self.outcome.twice += 1
                machine.wasted_tokens += tokens
                continue
            self._recorded[row] = 1
            new.append((row, tokens))
        self._left -= len(new)
        if new:
            self._policy.ended(worker, new, self.now_s)

    def _keep_trace(self, machine: Machine) -> None:
        if machine.trace is not None:
            self.outcome.traces[machine.id] = machine.trace


__all__ = ["FOREVER", "Outcome", "Policy", "Simulation"]
