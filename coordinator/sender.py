"""Performs what the policy decides: rows out of the pools, into shards, to the workers' queues."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from coordinator.assignments import Flight
from coordinator.dispatch import Dispatch
from coordinator.faults import Faults
from coordinator.job_run import JobRun
from coordinator.member import Member
from coordinator.records import OpenRow
from coordinator.roster import Roster
from coordinator.scheduler import cuts
from coordinator.work_order import offers
from fleet.messages import Shard

#: A shard and the worker it is for.
Addressed = tuple[str, Shard]


class Sender:
    """Sends work, a few times a second."""

    def __init__(self, roster: Roster, faults: Faults, dispatch: Dispatch) -> None:
        self._roster = roster
        self._faults = faults
        self._dispatch = dispatch

    def send(self) -> bool:
        """Sends the shards that are due; False when none was."""
        shards = [*self._trials(), *self._work()]
        # All are in flight now: one that does not reach its queue is missed there, and its rows come back.
        for worker, shard in shards:
            self._dispatch.send(worker, shard)
        return bool(shards)

    def _work(self) -> list[Addressed]:
        """For each job, in order, the policy's cuts for the workers that are to work for it."""
        wanted = self._roster.wanted()
        if not wanted:
            return []
        hands = [self._roster.hands(member) for member in self._roster.takers()]
        shards: list[Addressed] = []
        for job, workers in offers(wanted, hands, self._roster.fits).items():
            run = self._roster.runs[job]
            members = {worker: self._roster.members[worker] for worker in workers}
            for cut in cuts([self._roster.view(member, run) for member in members.values()], run.pool()):
                anyhow = cut.longest is not None and not self._roster.holds_more(run, cut.longest)
                shards += self._load(run, members[cut.worker], run.take(cut, anyhow=anyhow), exclusive=False)
        return shards

    def _trials(self) -> list[Addressed]:
        """Suspects: each trial for the worker that has fewest of them."""
        shards: list[Addressed] = []
        for rows in list(self._faults.trials()):
            run = self._roster.runs[rows[0].job]
            takers = [member for member in self._roster.takers() if self._roster.hands(member).may_take(run.model)]
            if not takers:
                self._faults.keep_suspects(rows)
                continue
            member = min(takers, key=self._trials_with)
            shards += self._load(run, member, rows, exclusive=True)
        return shards

    def _trials_with(self, member: Member) -> int:
        return sum(flight.exclusive for flight in self._roster.assignments.of(member.id))

    def _load(self, run: JobRun, member: Member, rows: Sequence[OpenRow], *, exclusive: bool) -> Iterator[Addressed]:
        """The shards of these rows, which are in flight from here on; rows in flight for another job are left to it."""
        free = [row for row in rows if self._roster.assignments.shard_of(row.id) is None]
        for load in run.loads(free, exclusive=exclusive):
            shard = load.named(member.shard_id())
            flight = Flight(id=shard.id, worker=member.id, job=run.job.id, rows=load.rows, exclusive=exclusive)
            self._roster.assignments.send(flight)
            yield member.id, shard
