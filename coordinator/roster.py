"""Who is in the fleet, which jobs are worked on, and who has which rows: what the controller decides from."""

from __future__ import annotations

from coordinator.assignments import Assignments
from coordinator.job_run import JobRun
from coordinator.member import Member
from coordinator.scheduler import WorkerView, seconds
from coordinator.work_order import Hands, Wanted


class Roster:
    """Members, jobs and shards in flight. Owned by the controller's thread."""

    def __init__(self) -> None:
        self.members: dict[str, Member] = {}
        #: by id; a job that ended or is given up is here no more
        self.runs: dict[int, JobRun] = {}
        self.assignments = Assignments()

    def takers(self) -> list[Member]:
        """The members that shards may be sent to."""
        return [member for member in self.members.values() if member.takes_work]

    def wanted(self) -> list[Wanted]:
        """The jobs that have rows to send."""
        return [
            Wanted(job=run.job.id, priority=run.job.priority, model=run.model)
            for run in self.runs.values()
            if len(run.backlog)
        ]

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
        longest = self.view(self.members[worker], run).longest_tokens
        return not longest or run.backlog.fits(longest) or not self.holds_more(run, longest)

    def holds_more(self, run: JobRun, longest: int) -> bool:
        """Whether some member may hold rows of over `longest` tokens; of a model not loaded yet that is unknown."""
        others = (self._longest(member, run) for member in self.members.values() if member.takes_work)
        return any(not other or other > longest for other in others)

    def view(self, member: Member, run: JobRun) -> WorkerView:
        """A member as the policy sees it when it cuts work of this job."""
        bare = member.view(0.0, run.job.spec.model_hash)
        rows = [row for flight in self.assignments.of(member.id) for row in flight.rows.values()]
        return member.view(seconds(bare, *run.work_of(rows)), run.job.spec.model_hash)

    def _longest(self, member: Member, run: JobRun) -> int:
        if run.model in member.refused:
            return 1
        return member.view(0.0, run.job.spec.model_hash).longest_tokens
