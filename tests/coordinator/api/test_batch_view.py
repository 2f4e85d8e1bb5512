"""A job's state in OpenAI's words."""

from __future__ import annotations

import pytest

from coordinator.api.batch_view import Outputs, batch_id, batch_object, job_of, status_of
from coordinator.api.batches import BatchRecord
from coordinator.control.jobs_seen import JobSeen, seen
from coordinator.records import Counts, JobRecord, JobStatus
from coordinator.screens.snapshot import JobLine
from fleet.job import JobState
from tests.ledgers import spec


def record(cancelling: float | None = None) -> BatchRecord:
    return BatchRecord(
        job=3,
        input_file_id="file-x",
        endpoint="/v1/chat/completions",
        completion_window="24h",
        model="org/name",
        output="/nowhere/output.jsonl",
        created=1000.5,
        cancelling=cancelling,
    )


def status(state: JobState = JobState.RUNNING, problem: str = "", **counts: int) -> JobStatus:
    job = JobRecord(id=3, spec=spec(), state=state, created=1.0, intake_complete=False, signature="", problem=problem)
    return JobStatus(record=job, counts=Counts(**counts))


def job(state: str, **counts: int) -> JobSeen:
    return JobSeen(status=status(**counts), state=state)


@pytest.mark.parametrize(
    ("state", "word"),
    [
        ("queued", "validating"),
        ("reading", "validating"),
        ("running", "in_progress"),
        ("interrupted", "in_progress"),
        ("writing", "finalizing"),
        ("finished", "completed"),
        ("failed", "failed"),
        ("cancelled", "cancelled"),
    ],
)
def test_every_state_has_openais_word(state: str, word: str) -> None:
    assert status_of(record(), job(state)) == word


def test_a_batch_whose_rows_run_while_it_is_read_is_in_progress() -> None:
    assert status_of(record(), job("reading", requests=9, done=1)) == "in_progress"


@pytest.mark.parametrize(("state", "word"), [("writing", "cancelling"), ("finished", "completed")])
def test_a_cancel_shows_until_the_job_is_over(state: str, word: str) -> None:
    assert status_of(record(cancelling=5.0), job(state)) == word


def test_times_are_those_that_were_recorded_and_no_others() -> None:
    made = batch_object(record(), job("finished", requests=2, done=2), Outputs(answers="file-3-output", at=2000.9))
    assert (made["created_at"], made["completed_at"]) == (1000, 2000)
    assert made["failed_at"] is made["cancelled_at"] is made["cancelling_at"] is made["expires_at"] is None
    assert made["request_counts"] == {"total": 2, "completed": 2, "failed": 0}


@pytest.mark.parametrize(("id", "number"), [("batch_3", 3), ("batch_", None), ("3", None), ("batch_x", None)])
def test_a_batchs_id_is_its_jobs(id: str, number: int | None) -> None:
    assert job_of(id) == number
    assert batch_id(3) == "batch_3"


def line(state: str, error: str = "") -> JobLine:
    return JobLine(id=3, task="generate", model="m", state=state, error=error)


@pytest.mark.parametrize(
    ("recorded", "lines", "state"),
    [
        (JobState.RUNNING, [line("queued")], "queued"),
        (JobState.RUNNING, [], "interrupted"),
        (JobState.FINISHED, [line("writing")], "finished"),
        (JobState.CANCELLED, [line("cancelled")], "cancelled"),
        (JobState.FAILED, [], "failed"),
    ],
)
def test_the_ledger_and_the_controller_tell_one_story(recorded: JobState, lines: list[JobLine], state: str) -> None:
    (found,) = seen([status(recorded, problem="no such model" if recorded is JobState.FAILED else "")], lines)
    assert found.state == state
    assert found.error == ("no such model" if recorded is JobState.FAILED else "")
