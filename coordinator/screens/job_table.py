"""Jobs as `fleet jobs` shows them: as dicts for JSON, as a table of these for a person. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from coordinator.records import JobStatus
from coordinator.screens.wording import age

_HEAD = ("ID", "TASK", "DONE", "FAILED", "STATE", "AGE", "MODEL")


def as_dict(job: JobStatus, state: str) -> dict[str, Any]:
    """A job as `--json` shows it."""
    record, counts = job.record, job.counts
    return {
        "id": record.id,
        "task": record.spec.task.value,
        "model": record.spec.model,
        "inputs": list(record.spec.inputs),
        "output": record.spec.output,
        "state": state,
        "created": record.created,
        "intake_complete": record.intake_complete,
        "requests": counts.requests,
        "done": counts.done,
        "failed": counts.failed,
        "open": counts.open,
        "input_tokens": counts.input_tokens,
        "output_tokens": counts.output_tokens,
    }


def table(jobs: Sequence[Mapping[str, Any]], now: float, *, inputs: bool) -> str:
    """The jobs as aligned columns, the last one their inputs or their output."""
    lines = [(*_HEAD, "INPUT" if inputs else "OUTPUT"), *[_cells(job, now, inputs=inputs) for job in jobs]]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def _cells(job: Mapping[str, Any], now: float, *, inputs: bool) -> tuple[str, ...]:
    more = "" if job["intake_complete"] else "+"
    return (
        str(job["id"]),
        job["task"],
        f"{job['done']:,}/{job['requests']:,}{more}",
        f"{job['failed']:,}",
        job["state"],
        age(now - job["created"]),
        Path(job["model"]).name,
        " ".join(Path(name).name for name in job["inputs"]) if inputs else job["output"],
    )
