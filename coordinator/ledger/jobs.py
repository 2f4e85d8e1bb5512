"""Jobs: found by what identifies them, begun again, cancelled, forgotten."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from coordinator.ledger.schema import first_request
from coordinator.ledger.settle import settle
from coordinator.ledger.store import Store
from coordinator.records import Cleaned, Counts, JobRecord, JobSpec, JobStatus
from fleet.errors import UsageError
from fleet.job import JobState, Task, canonical

# A cancelled job whose run has not noticed yet is cancelled all the same.
_COLUMNS = """
SELECT id, spec, CASE WHEN state = 'running' AND id IN (SELECT job FROM cancellation) THEN 'cancelled' ELSE state END,
    created, intake_complete, signature, salt, priority, submitted, problem,
    requests, done, error, quarantined, input_tokens, output_tokens
FROM job
"""

_TOUCH_FAILED = """
INSERT INTO temp.touched SELECT id FROM request q
WHERE id >= ? AND id < ? AND state > 1 AND EXISTS (SELECT 1 FROM part WHERE request = q.id)
"""
_OPEN_ROWS = """
UPDATE row SET state = 0, crashes = 0, alone = 0, vanished = 0, error = NULL WHERE state > 1 AND id IN (
    SELECT p.row FROM temp.touched t CROSS JOIN part p ON p.request = t.request)
"""
_TAKE_COUNTS = """
UPDATE job SET error = job.error - s.error, quarantined = job.quarantined - s.quarantined FROM (
    SELECT total(q.state = 2) AS error, total(q.state = 3) AS quarantined
    FROM temp.touched t CROSS JOIN request q ON q.id = t.request
) s WHERE id = ?
"""
_OPEN_REQUESTS = "UPDATE request SET state = 0, error = NULL WHERE id IN (SELECT request FROM temp.touched)"
#: The signature of a job whose input was taken in, at least in part, and is being taken in again.
READ_AGAIN = "again"
_NO_COUNTS = f"""
UPDATE job SET requests = 0, done = 0, error = 0, quarantined = 0, input_tokens = 0, output_tokens = 0,
    intake_complete = 0, signature = CASE WHEN ? THEN '{READ_AGAIN}' ELSE signature END WHERE id = ?
"""
#: Rows that the input, read so far, does not name may be those of the rest, which then are not computed again.
_READING_AGAIN = f"SELECT id, state FROM job WHERE intake_complete = 0 AND signature = '{READ_AGAIN}' ORDER BY id"


#: A line too broken to tell its form names no url; so many of them in front still leave one that does.
_LOOKED_AT = 1_000


def is_openai(store: Store, job: int) -> bool:
    """Whether one of the job's first requests names a url."""
    urls = "SELECT url FROM request WHERE id >= ? AND id < ? ORDER BY id LIMIT ?"
    bounds = (first_request(job), first_request(job + 1), _LOOKED_AT)
    return store.row(f"SELECT 1 FROM ({urls}) WHERE url <> ''", bounds) is not None


def fingerprint(spec: JobSpec) -> bytes:
    """sha256 over the spec's canonical JSON."""
    return hashlib.sha256(canonical(asdict(spec))).digest()


def all_jobs(store: Store) -> list[JobStatus]:
    """Every job, oldest first."""
    return [_status(values) for values in store.rows(f"{_COLUMNS} ORDER BY id")]


def job_status(store: Store, job: int) -> JobStatus:
    """One job; UsageError listing the known ids when there is no such job."""
    values = store.row(f"{_COLUMNS} WHERE id = ?", (job,))
    if values is None:
        known = ", ".join(str(number) for (number,) in store.rows("SELECT id FROM job ORDER BY id DESC LIMIT 20"))
        raise UsageError(f"there is no job {job}: " + (f"known are {known}" if known else "none is recorded yet"))
    return _status(values)


def find_job(store: Store, spec: JobSpec, salt: str) -> int | None:
    """The job with this spec: of this salt, or without one the newest of any."""
    found = store.row(
        "SELECT id FROM job WHERE fingerprint = ? AND (? = '' OR salt = ?) ORDER BY id DESC LIMIT 1",
        (fingerprint(spec), salt, salt),
    )
    return None if found is None else int(found[0])


def new_job(store: Store, spec: JobSpec, salt: str, created: float) -> int:
    """Records a job; its id."""
    store.run(
        "INSERT INTO job (fingerprint, salt, spec, state, created) VALUES (?, ?, ?, ?, ?)",
        (fingerprint(spec), salt, canonical(asdict(spec)).decode(), JobState.RUNNING.value, created),
    )
    return store.number("SELECT last_insert_rowid()")


def set_terms(store: Store, job: int, *, priority: int, submitted: bool) -> None:
    """Says how urgent a job is and whether a fleet takes it up again by itself."""
    store.run("UPDATE job SET priority = ?, submitted = ? WHERE id = ?", (priority, int(submitted), job))


def set_model(store: Store, job: int, model_hash: str) -> None:
    """Names the weights of a job that was recorded before they were read; what identifies it stays."""
    spec = replace(job_status(store, job).record.spec, model_hash=model_hash)
    store.run("UPDATE job SET spec = ? WHERE id = ?", (canonical(asdict(spec)).decode(), job))


def cancel_job(store: Store, job: int) -> None:
    """Marks a job cancelled; UsageError when it has finished."""
    with store.transaction():
        if job_status(store, job).record.state is JobState.FINISHED:
            raise UsageError(f"job {job} has finished, there is nothing to cancel")
        store.run("INSERT OR IGNORE INTO cancellation (job) VALUES (?)", (job,))


def reopen(store: Store, job: int) -> None:
    """Makes a recorded job run again: what failed, other than in the input, is open with its counts at zero."""
    store.run("UPDATE job SET state = ?, problem = '' WHERE id = ?", (JobState.RUNNING.value, job))
    store.run("DELETE FROM cancellation WHERE job = ?", (job,))
    if store.run(_TOUCH_FAILED, (first_request(job), first_request(job + 1))):
        store.run(_TAKE_COUNTS, (job,))
        store.run(_OPEN_ROWS)
        store.run(_OPEN_REQUESTS)
        settle(store)  # another job may have computed their rows since


def forget_requests(store: Store, job: int) -> int:
    """Deletes the job's requests and parts and zeroes its totals; how many requests there were."""
    bounds = (first_request(job), first_request(job + 1))
    store.run("DELETE FROM part WHERE request >= ? AND request < ?", bounds)
    gone = store.run("DELETE FROM request WHERE id >= ? AND id < ?", bounds)
    store.run(_NO_COUNTS, (gone > 0, job))
    return gone


def reading_again(store: Store) -> bool:
    """Whether a running job's input is to be read again: what it needs is not known before."""
    cancelled = {job for (job,) in store.rows("SELECT job FROM cancellation")}
    return any(state == JobState.RUNNING.value and job not in cancelled for job, state in store.rows(_READING_AGAIN))


def forget_jobs(store: Store, jobs: Sequence[int]) -> Cleaned:
    """Deletes the jobs and every row and result that no other job refers to.

    Rows stay, too, while a job that is kept is taking its input in again: it still needs what it does not name yet.
    """
    requests = sum(forget_requests(store, job) for job in jobs)
    store.run("DELETE FROM cancellation WHERE job IN (SELECT value FROM json_each(?))", (json.dumps(list(jobs)),))
    store.run("DELETE FROM job WHERE id IN (SELECT value FROM json_each(?))", (json.dumps(list(jobs)),))
    needed_by = tuple(job for job, _ in store.rows(_READING_AGAIN))
    rows = 0 if needed_by else _forget_rows(store)
    store.run("DELETE FROM input WHERE id NOT IN (SELECT input FROM request)")
    return Cleaned(jobs=len(jobs), requests=requests, rows=rows, needed_by=needed_by)


def _forget_rows(store: Store) -> int:
    store.run("DELETE FROM result WHERE NOT EXISTS (SELECT 1 FROM part WHERE part.row = result.row)")
    rows = store.run("DELETE FROM row WHERE NOT EXISTS (SELECT 1 FROM part WHERE part.row = row.id)")
    store.run("DELETE FROM sampling WHERE id NOT IN (SELECT sampling FROM row)")
    store.run("DELETE FROM sent")  # ids of rows are given out again, and nobody works on the folder now
    return rows


def _status(values: tuple[Any, ...]) -> JobStatus:
    number, spec, state, created, complete, signature, salt, priority, submitted, problem, *counts = values
    record = JobRecord(
        id=number,
        spec=_spec(spec),
        state=JobState(state),
        created=created,
        intake_complete=bool(complete),
        signature=signature,
        salt=salt,
        priority=priority,
        submitted=bool(submitted),
        problem=problem,
    )
    requests, done, error, quarantined, input_tokens, output_tokens = counts
    return JobStatus(
        record=record,
        counts=Counts(
            requests=requests,
            done=done,
            error=error,
            quarantined=quarantined,
            input_tokens=input_tokens,
            output_tokens=output_tokens,
        ),
    )


def _spec(text: str) -> JobSpec:
    fields = json.loads(text)
    return JobSpec(**{**fields, "task": Task(fields["task"]), "inputs": tuple(fields["inputs"])})
