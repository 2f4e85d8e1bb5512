"""How far a job is, for a progress bar."""

from __future__ import annotations

from dataclasses import dataclass

from coordinator.control.job_run import JobRun
from coordinator.control.roster import Roster
from coordinator.records import Counts
from coordinator.scheduling.fleet_view import seconds
from fleet.job import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView:
    """A job at one moment."""

    counts: Counts
    intake_ended: bool
    #: new tokens per second over the last minute
    output_tps: float
    #: prompt tokens per second over the last minute
    prompt_tps: float
    #: rows computed in this run
    computed: int
    #: seconds of work left over all workers
    left_s: float
    #: in words
    state: str
    #: its rows are texts to embed, which make no new tokens
    embeds: bool = False
    #: rows that are still finished where nothing else is; 0 else
    batch: int = 0


def run_view(roster: Roster, run: JobRun, *, state: str) -> RunView:
    """The job as its members and its pool tell it."""
    members = list(roster.members.values())
    views = [roster.view(member, run) for member in members]
    pool = run.pool()
    speed = sum(1 / max(seconds(view, pool.computed_tokens, pool.output_tokens), 1e-9) for view in views)
    pool_s = 1 / speed if pool.rows and speed else 0.0
    return RunView(
        counts=run.counts(),
        intake_ended=run.read,
        output_tps=sum(member.throughput.output_tps for member in members),
        prompt_tps=sum(member.throughput.prompt_tps for member in members),
        computed=run.computed,
        left_s=pool_s + max((view.outstanding_s for view in views), default=0.0),
        state=state,
        embeds=run.job.spec.task is Task.EMBED,
    )
