"""A job as an OpenAI batch object. Pure."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from coordinator.api.batches import BatchRecord
from coordinator.control.jobs_seen import OVER, JobSeen

#: OpenAI's word for each state of a job; one that is read while rows run already is in progress.
_STATUS = {
    "queued": "validating",
    "reading": "validating",
    "running": "in_progress",
    "interrupted": "in_progress",
    "writing": "finalizing",
    "finished": "completed",
    "failed": "failed",
    "cancelled": "cancelled",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outputs:
    """The files a batch has written, by id; None for one that is missing or empty."""

    answers: str | None = None
    errors: str | None = None
    #: when the newer of them was written, unix seconds
    at: float | None = None


def outputs_of(
    job: JobSeen, answers: tuple[str, os.stat_result | None], errors: tuple[str, os.stat_result | None]
) -> Outputs:
    """What a job has to show: nothing before it is over."""
    if job.state not in OVER:
        return Outputs()
    times = [about.st_mtime for _, about in (answers, errors) if about is not None]
    return Outputs(
        answers=answers[0] if answers[1] else None,
        errors=errors[0] if errors[1] else None,
        at=max(times, default=None),
    )


def status_of(record: BatchRecord, job: JobSeen) -> str:
    """The batch's status, one of OpenAI's."""
    if record.cancelling is not None and job.state not in OVER:
        return "cancelling"
    begun = job.status.counts.done or job.status.counts.failed
    return "in_progress" if job.state == "reading" and begun else _STATUS[job.state]


def batch_object(record: BatchRecord, job: JobSeen, outputs: Outputs) -> dict[str, Any]:
    """The batch as OpenAI's clients read it. Times that nobody recorded are null."""
    status, counts = status_of(record, job), job.status.counts
    ended = _whole(outputs.at)
    return {
        "id": batch_id(record.job),
        "object": "batch",
        "endpoint": record.endpoint,
        "model": job.status.record.spec.model or record.model,
        "errors": _errors(job),
        "input_file_id": record.input_file_id,
        "completion_window": record.completion_window,
        "status": status,
        "output_file_id": outputs.answers,
        "error_file_id": outputs.errors,
        "created_at": int(record.created),
        "in_progress_at": None,
        "expires_at": None,
        "finalizing_at": ended if status == "completed" else None,
        "completed_at": ended if status == "completed" else None,
        "failed_at": ended if status == "failed" else None,
        "expired_at": None,
        "cancelling_at": _whole(record.cancelling),
        "cancelled_at": ended if status == "cancelled" else None,
        "request_counts": {"total": counts.requests, "completed": counts.done, "failed": counts.failed},
        "usage": {
            "input_tokens": counts.input_tokens,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": counts.output_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": counts.input_tokens + counts.output_tokens,
        },
        "metadata": dict(record.metadata) or None,
    }


def batch_id(job: int) -> str:
    """The id of the batch that a job was ordered as."""
    return f"batch_{job}"


def job_of(id: str) -> int | None:
    """The job of a batch's id; None for another kind of id."""
    number = id.removeprefix("batch_")
    return int(number) if id != number and number.isascii() and number.isdigit() and len(number) < 19 else None


def _errors(job: JobSeen) -> dict[str, Any] | None:
    if not job.error:
        return None
    return {"object": "list", "data": [{"code": "job_failed", "message": job.error, "param": None, "line": None}]}


def _whole(seconds: float | None) -> int | None:
    return None if seconds is None else int(seconds)
