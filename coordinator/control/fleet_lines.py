"""The lines of a snapshot, from what the controller knows. Pure but for the ledger's counts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import sqrt

from coordinator.control.job_office import OVER, Stage, Submitted
from coordinator.control.member import Member, Presence
from coordinator.control.roster import Roster
from coordinator.control.run_view import run_view
from coordinator.records import Counts
from coordinator.screens.snapshot import JobLine, MacLine, MacState
from fleet.job import Task
from fleet.messages import WorkerState

_STATES = {
    WorkerState.IDLE: MacState.IDLE,
    WorkerState.LOADING: MacState.LOADING,
    WorkerState.WORKING: MacState.WORKING,
    WorkerState.MEASURING: MacState.MEASURING,
    WorkerState.THROTTLED: MacState.THROTTLED,
    WorkerState.PAUSED: MacState.PAUSED,
    WorkerState.STOPPING: MacState.STOPPING,
}
#: An estimate of the time left is off by the speeds' drift, and by what n finished rows leave open of the mean length
#: of answers, whose spread is about its size: 2 / sqrt(n) covers it 19 times of 20.
SPEED_SPREAD = 0.1
LENGTH_SPREAD = 2.0


def mac_lines(roster: Roster, models: Mapping[str, str], kicked: Mapping[str, str]) -> list[MacLine]:
    """A line for each member, and for those sent away; `models` is the name of each hash."""
    total = sum(_speed(member) for member in roster.members.values())
    lines = [
        mac_line(member, roster, models, share=_speed(member) / total if total else 0.0)
        for member in roster.members.values()
        if not member.forgotten
    ]
    gone = [MacLine(id=wid, name=name, state=MacState.KICKED) for wid, name in kicked.items()]
    return sorted([*lines, *gone], key=lambda line: line.name)


def mac_line(member: Member, roster: Roster, models: Mapping[str, str], *, share: float) -> MacLine:
    """One member."""
    engine, embeds = member.engine, _embeds(member, roster)
    return MacLine(
        id=member.id,
        name=member.name,
        state=state_of(member),
        note=_note(member),
        chip=member.host.chip,
        memory_bytes=member.host.memory_bytes,
        used_bytes=member.throughput.total.peak_bytes,
        cap=min(engine.cap, member.cap or engine.cap) if engine else 0,
        running=len(member.running),
        assigned=sum(len(flight.rows) for flight in roster.assignments.of(member.id)),
        output_tps=_now(member, embeds=embeds) if _speed(member) else 0.0,
        measured_tps=_measured(member, embeds=embeds),
        share=share,
        rows_done=member.rows_done,
        model=models.get(engine.model_hash, "") if engine else "",
    )


def state_of(member: Member) -> MacState:
    """In a word."""
    if member.presence is Presence.LOST:
        return MacState.LOST
    if member.presence is Presence.STALE:
        return MacState.STALE
    return _STATES[member.beat.state] if member.beat else MacState.JOINING


def _note(member: Member) -> str:
    said = member.beat.note if member.beat else ""
    return said or next(iter(member.refused.values()), "its engine crashes again and again" if member.worn else "")


def _embeds(member: Member, roster: Roster) -> bool:
    """Whether its model makes vectors, as the jobs of that model tell; without one, as its counters do."""
    held = member.engine.model_hash if member.engine else ""
    specs = [run.job.spec for run in roster.runs.values()]
    tasks = [spec.task for spec in specs if spec.model_hash == held]
    return Task.EMBED in tasks if tasks else member.throughput.only_read


def _now(member: Member, *, embeds: bool) -> float:
    """New tokens, or where it embeds tokens read, per second over the last minute."""
    return member.throughput.prompt_tps if embeds else member.throughput.output_tps


def _measured(member: Member, *, embeds: bool) -> float:
    """What its knee promises; where the engine only tells how far it is from that, what follows from it."""
    if member.beat is None or member.engine is None:
        return 0.0
    pace = member.beat.pace
    return member.engine.decode_tps or (member.throughput.shown_tps(embeds=embeds) / pace if pace > 0 else 0.0)


def _speed(member: Member) -> float:
    """What a member adds to the fleet now; nothing while it is away."""
    there = member.presence in (Presence.ALIVE, Presence.STALE) and not member.resting
    return member.throughput.usual_tps if there else 0.0


def job_line(job: Submitted, counts: Counts, roster: Roster) -> JobLine:
    """One job of the fleet."""
    record, run = job.record, job.run
    hands = [m for m in roster.members.values() if any(f.job == record.id for f in roster.assignments.of(m.id))]
    own = [member for member in hands if member.engine and member.engine.model_hash == record.spec.model_hash]
    embeds = record.spec.task is Task.EMBED
    return JobLine(
        id=record.id,
        task=record.spec.task.value,
        model=record.spec.model,
        state=(Stage.READING if job.reads and not hands else job.stage).value,
        error=job.error,
        priority=record.priority,
        requests=counts.requests,
        intake_complete=job.stage in OVER or job.stage is Stage.WRITING or bool(run and run.read),
        done=counts.done,
        failed=counts.failed,
        retried=run.retried if run else job.retried,
        input_tokens=counts.input_tokens,
        output_tokens=counts.output_tokens,
        output_tps=sum(_now(member, embeds=embeds) for member in own),
        planned_tps=sum(member.throughput.shown_tps(embeds=embeds) for member in own),
        padding_share=_padding(hands),
        eta_s=_eta(job, roster, hands),
        created=record.created,
    )


def _padding(members: Iterable[Member]) -> float:
    totals = [member.throughput.total for member in members]
    padding = sum(total.padding_tokens for total in totals)
    return padding / max(sum(total.prompt_tokens for total in totals) + padding, 1)


def _eta(job: Submitted, roster: Roster, hands: Sequence[Member]) -> tuple[float, float] | None:
    """Soonest and latest; None for a job that nobody works on, or of which nothing is known yet."""
    if job.run is None or not job.run.read or not job.run.computed or not hands:
        return None
    left_s = run_view(roster, job.run, state="").left_s
    spread = 1 + SPEED_SPREAD + LENGTH_SPREAD / sqrt(job.run.computed)
    return left_s / spread, left_s * spread
