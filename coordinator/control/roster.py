"""Who is in the fleet, which jobs are worked on, and who has which rows: what the controller decides from."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from coordinator.control.job_run import JobRun
from coordinator.control.member import Member
from coordinator.records import OpenRow
from coordinator.scheduling.assignments import Assignments
from coordinator.scheduling.fleet_view import WorkerView
from coordinator.scheduling.picture import worker_view
from coordinator.scheduling.work_order import Hands, Wanted


class Roster:
    """Members, jobs and shards in flight. Owned by the controller's thread."""

    def __init__(self) -> None:
        self.members: dict[str, Member] = {}
        #: by id; a job that ended or is given up is here no more
        self.runs: dict[int, JobRun] = {}
        self.assignments = Assignments()

    def return_unbegun(self, rows: Iterable[OpenRow]) -> None:
        """Rows that no worker has begun with are in the pools again, among the rest."""
        pools: dict[int, list[OpenRow]] = {}
        for row in rows:
            pools.setdefault(row.job, []).append(row)
        for job, some in pools.items():
            self.runs[job].backlog.add(some)
            self.regain([row.id for row in some])

    def regain(self, rows: Collection[int]) -> None:
        """Rows came back, to the pool of the job that had them, or nowhere: the jobs that had left them to it have
        them in their pools, too. The first that sends one has it, which the others see."""
        for run in self.runs.values():
            run.regain(rows)

    def takers(self) -> list[Member]:
        """The members that shards may be sent to; those whose engines crash again and again only when there are no
        others."""
        there = [member for member in self.members.values() if member.takes_work]
        return [member for member in there if not member.worn] or there

    def wanted(self) -> list[Wanted]:
        """The jobs that have rows to send."""
        return [
            Wanted(job=run.job.id, priority=run.job.priority, model=run.model)
            for run in self.runs.values()
            if len(run.backlog)
        ]

    def in_order(self) -> list[JobRun]:
        """The jobs as they come to their turn."""
        return sorted(self.runs.values(), key=lambda run: (-run.job.priority, run.job.id))

    def hands(self, member: Member) -> Hands:
        """What decides which job a member may work for."""
        jobs = {flight.job for flight in self.assignments.of(member.id)}
        return Hands(
            worker=member.id,
            holds=member.engine.model_hash if member.engine else "",
            busy_with=frozenset(self.runs[job].model for job in jobs if job in self.runs),
            refused=frozenset(member.refused),
        )

    def fits(self, job: int, worker: str) -> bool:
        """Whether a member may be given a row of the job: one that it can hold, as far as is known, or one that
        nobody can, which is answered with figures."""
        run = self.runs[job]
        longest = self.members[worker].seen(run.job.spec.model_hash).longest_tokens
        return not longest or run.backlog.fits(longest) or not self.holds_more(run, longest)

    def holds_more(self, run: JobRun, longest: int) -> bool:
        """Whether some member may hold rows of over `longest` tokens; of a model not loaded yet that is unknown."""
        others = (self._longest(member, run) for member in self.members.values() if member.takes_work)
        return any(not other or other > longest for other in others)

    def view(self, member: Member, run: JobRun, *, may_take: bool = True) -> WorkerView:
        """A member as the policy sees it when it decides on this job."""
        seen = member.seen(run.job.spec.model_hash)
        burden = self.assignments.burden(member.id)
        return worker_view(member.id, seen, member.speed, burden, may_take=may_take)

    def _longest(self, member: Member, run: JobRun) -> int:
        if run.model in member.refused:
            return 1
        return member.seen(run.job.spec.model_hash).longest_tokens
