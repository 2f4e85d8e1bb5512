"""The lines of a snapshot say what the beats and the ledger say."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from coordinator.control.fleet_lines import job_line, mac_lines, state_of
from coordinator.control.job_office import Stage, Submitted
from coordinator.control.job_run import JobRun
from coordinator.control.member import Member, Presence
from coordinator.control.roster import Roster
from coordinator.ledger.ledger import Ledger
from coordinator.scheduling.assignments import Flight
from coordinator.screens.snapshot import MacState
from fleet.config import StateDir
from fleet.messages import Figures, Host, Ready, WorkerState
from tests.ledgers import all_done, request, spec
from tests.post import beat

READY = Ready(model_hash="ab", cap=8, kv_bytes=1, budget_bytes=10_000, context_tokens=2048)


def member(name: str, **said: object) -> Member:
    """A worker that was heard twice, 10 s apart."""
    made = Member(id=f"id-{name}", name=name, host=Host(chip="M4", memory_bytes=24 << 30))
    made.presence = Presence.ALIVE
    half = Figures(output_tokens=500, steps=100, decode_s=5.0, prompt_tokens=100, prefill_s=1.0)
    full = Figures(output_tokens=1000, steps=200, decode_s=10.0, prompt_tokens=200, prefill_s=2.0, peak_bytes=7)
    for now, figures in ((0.0, half), (10.0, full)):
        told: dict[str, object] = {"engine": READY, "figures": figures, **said}
        made.heard(beat(made.id, **told), now)  # type: ignore[arg-type]
    return made


@pytest.fixture
def roster() -> Roster:
    return Roster()


def test_a_mac_line_tells_what_its_beats_say(roster: Roster) -> None:
    roster.members["x"] = member("mini", running=((1, 2), (2, 3)), pace=0.5)
    (line,) = mac_lines(roster, {"ab": "org/model"}, {})
    assert (line.name, line.chip, line.state, line.model) == ("mini", "M4", MacState.WORKING, "org/model")
    assert (line.cap, line.running, line.used_bytes, line.share) == (8, 2, 7, 1.0)
    assert line.output_tps == pytest.approx(50)
    assert line.measured_tps > 0


@pytest.mark.parametrize("state", list(WorkerState))
def test_every_state_of_a_worker_has_a_word(state: WorkerState) -> None:
    assert state_of(member("m", state=state)).value == ("leaving" if state is WorkerState.STOPPING else state.value)


def test_presence_wins_over_what_was_said_last() -> None:
    made = member("mini")
    made.presence = Presence.STALE
    assert state_of(made) is MacState.STALE
    made.lost()
    assert state_of(made) is MacState.LOST
    assert state_of(Member(id="new")) is MacState.JOINING


def test_those_away_or_resting_have_no_share_of_the_fleet(roster: Roster) -> None:
    roster.members = {"a": member("a"), "b": member("b"), "c": member("c", state=WorkerState.PAUSED, note="battery")}
    roster.members["b"].lost()
    lines = {line.name: line for line in mac_lines(roster, {}, {"k": "gone"})}
    assert [lines[name].share for name in "abc"] == [1.0, 0.0, 0.0]
    assert (lines["c"].note, lines["gone"].state) == ("battery", MacState.KICKED)


def test_a_mac_that_cannot_load_a_model_says_why(roster: Roster) -> None:
    roster.members["a"] = made = member("a")
    made.refused[("m", "ab")] = "no such folder here"
    assert mac_lines(roster, {}, {})[0].note == "no such folder here"


def test_a_mac_that_left_is_not_shown(roster: Roster) -> None:
    roster.members["a"] = made = member("a")
    made.forgotten = True
    assert mac_lines(roster, {}, {}) == []


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger.open(StateDir(tmp_path)) as ledger:
        yield ledger


def test_a_job_line_follows_the_job(ledger: Ledger, roster: Roster) -> None:
    record, _ = ledger.begin_job(spec(), priority=3)
    job = Submitted(record=record)
    assert job_line(job, ledger.counts(record.id), roster).state == "queued"
    opened = ledger.add_requests(record.id, [request("a", 1), request("b", 2)])
    job.stage, job.run = Stage.RUNNING, JobRun(record, ledger, lambda *_, **__: (), feed=None)
    job.run.take_up()
    ledger.commit("w", all_done(opened[:1]))
    line = job_line(job, ledger.counts(record.id), roster)
    assert (line.state, line.priority, line.requests, line.done, line.intake_complete) == ("running", 3, 2, 1, True)
    assert line.eta_s is None, "nobody works on it"
    job.stage, job.run, job.error = Stage.FAILED, None, "no such model"
    assert job_line(job, ledger.counts(record.id), roster).error == "no such model"


def test_what_a_mac_did_with_another_model_promises_nothing_of_this_one(ledger: Ledger, roster: Roster) -> None:
    # One that had embedded at 583 tok/s was told to be at 1/583 with the model that it answers with now.
    record, _ = ledger.begin_job(spec())
    job = Submitted(record=record, stage=Stage.RUNNING, run=JobRun(record, ledger, lambda *_, **__: (), feed=None))
    assert job.run is not None
    roster.runs[record.id] = job.run
    roster.members["id-a"] = made = Member(id="id-a")
    made.presence = Presence.ALIVE
    roster.assignments.send(Flight(id="id-a-1", worker="id-a", job=record.id))
    now = replace(READY, model_hash=record.spec.model_hash)

    def hear(second: int, engine: Ready, **figures: float) -> tuple[float, float]:
        """What is promised of the Mac and of the job, new tokens per second."""
        told = Figures(**figures)  # type: ignore[arg-type]
        made.heard(beat(made.id, engine=engine, figures=told, pace=1.0), float(second))
        (mac,), line = mac_lines(roster, {}, {}), job_line(job, ledger.counts(record.id), roster)
        return mac.measured_tps, line.planned_tps

    assert hear(0, READY, prompt_tokens=5830, prefill_s=10.0)[1] == 0.0, "it has not this job's model yet"
    assert hear(3, now, prompt_tokens=10, prefill_s=1.0) == (0.0, 0.0)
    assert hear(6, now, prompt_tokens=10, prefill_s=1.0, output_tokens=60, decode_s=2.0, steps=20) == (30.0, 30.0)
