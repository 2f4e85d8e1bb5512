"""Figures in sentences."""

from __future__ import annotations

_AGES = ((86_400, "d"), (3_600, "h"), (60, "min"))


def counted(count: int, noun: str) -> str:
    """`1 request`, `1,000 requests`; `noun` in the singular."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def age(seconds: float) -> str:
    """A time span in its largest unit."""
    for size, unit in _AGES:
        if seconds >= size:
            return f"{int(seconds // size)} {unit}"
    return f"{max(int(seconds), 0)} s"


def job_failed(job: int, why: str) -> str:
    """Of a job that failed as a whole, as an error tells it."""
    return f"job {job} failed: {why or 'the coordinator gives no reason'}"
