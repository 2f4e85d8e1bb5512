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
from worker.heartbeat import GAP_S
from worker.pump import TAKEN_S

#: The coordinator looks for beats this often, seconds; see `coordinator.control.watch`.
LOOK_S = BEAT_S / 3
#: A run that takes this many times longer than its bound has hung.
HUNG = 100.0
#: Parts of a period by which workers are out of step: the golden ratio spreads any number evenly.
GOLDEN = 0.6180339887


@dataclass(frozen=True, slots=True, kw_only=True)
class Delays:
    """What time passes between one thing and the next, beside what both sides agree on, seconds."""

    #: between two decisions
    turn_s: float = 0.5
    #: from a decision to the shard with the worker
    trip_s: float = 0.3
    #: from a worker's first moment to its engine at work, whose cap nobody knows before
    load_s: float = 0.0


@dataclass(slots=True, kw_only=True)
class Post:
    """When a worker is heard of."""

    #: its agent looks next for results to send
    flush_s: float
    #: it beats next, and has beaten last
    beat_s: float
    beaten_s: float
    #: shards its agent had taken then
    taken: int = -1


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
        delays: Delays | None = None,
        trace: bool = False,
    ) -> None:
        self.workload = workload
        self._prompts = workload.prompts.tolist()
        self._answers = workload.answers.tolist()
        self._policy = policy
        self._delays = delays or Delays()
        self._trace = trace
        self._coming = sorted(zip(profiles, fates, strict=True), key=lambda pair: pair[1].begins_s)
        self.machines: dict[str, Machine] = {}
        self._posts: dict[str, Post] = {}
        #: the coordinator looks next for beats
        self._look_s = 0.0
        self._recorded = bytearray(len(workload))
        self._left = len(workload)
        self.outcome = Outcome(makespan_s=0.0)
        self.now_s = 0.0

    # -- what a policy does ------------------------------------------------------------------------

    def send(self, worker: str, shard: str, rows: Sequence[int], *, ahead: bool = False) -> None:
        """Puts a shard at the end of a worker's queue, or ahead of all that waits there."""
        work = [(row, self._prompts[row], self._answers[row]) for row in rows]
        parcel = Parcel(shard, self.now_s + self._delays.trip_s, work)
        queue = self.machines[worker].queue
        put = queue.appendleft if ahead else queue.append
        put(parcel)

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
            looks = self.now_s >= self._look_s
            self._look_s += LOOK_S if looks else 0.0
            for worker, machine in list(self.machines.items()):
                machine.advance(self.now_s)
                self._hear(worker, machine, looks=looks)
            if self._left:
                self._policy.turn(self.now_s)
                self.now_s += self._delays.turn_s
        self.outcome.makespan_s = self.now_s
        for machine in self.machines.values():
            self.outcome.wasted_tokens += machine.wasted_tokens + sum(machine.running().values())
            self._keep_trace(machine)
        return self.outcome

    def _arrivals(self) -> None:
        while self._coming and self._coming[0][1].begins_s <= self.now_s:
            profile, fate = self._coming.pop(0)
            machine = Machine(profile.name, profile, fate, load_s=self._delays.load_s)
            if self._trace:
                machine.trace = []
            late = len(self.machines) * GOLDEN % 1.0
            self.machines[machine.id] = machine
            self._posts[machine.id] = Post(
                flush_s=self.now_s + late * FLUSH_S, beat_s=self.now_s + late * BEAT_S, beaten_s=self.now_s
            )
            self._policy.joined(machine.id, profile)

    def _hear(self, worker: str, machine: Machine, *, looks: bool) -> None:
        dies_s = machine.fate.dies_s
        post = self._posts[worker]
        if self.now_s >= post.flush_s or (machine.outbox and machine.is_idle):
            flush_s = min(post.flush_s, self.now_s)
            if machine.outbox and flush_s <= dies_s:
                self._record(worker, machine, flush_s)
                post.flush_s = self.now_s + TAKEN_S  # it looks whether that was taken, and sends what there is
            else:
                post.flush_s = self.now_s + FLUSH_S
        if self.now_s >= dies_s:
            if self.now_s >= dies_s + LEASE_TTL_S:
                self.outcome.wasted_tokens += sum(machine.running().values())
                self._keep_trace(machine)
                del self.machines[worker], self._posts[worker]
                self._policy.lost(worker)
        elif looks and self._has_beaten(machine, post):
            self._policy.beat(worker, machine, machine.figures(), self.now_s)

    def _has_beaten(self, machine: Machine, post: Post) -> bool:
        """Whether there is another beat than the last: it is time, or what the worker holds has changed."""
        if self.now_s < machine.ready_s:
            return False
        news = machine.taken != post.taken and self.now_s >= post.beaten_s + GAP_S
        if self.now_s < post.beat_s and not news:
            return False
        post.beaten_s, post.beat_s, post.taken = self.now_s, self.now_s + BEAT_S, machine.taken
        return True

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


__all__ = ["FOREVER", "Delays", "Outcome", "Policy", "Simulation"]
