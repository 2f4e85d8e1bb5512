"""Lists the jobs recorded in the state folder, the newest last.

  fleet jobs
  fleet jobs --json

A job is running, finished, cancelled or interrupted: that one ended before it was done, and nobody works on it now.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from coordinator.ledger import Ledger
from coordinator.lock import Holder, StateLock
from coordinator.records import JobStatus
from coordinator.wording import age
from fleet.config import StateDir
from fleet.errors import Exit
from fleet.flags import folder
from fleet.job import JobState

_HEAD = ("ID", "TASK", "DONE", "FAILED", "STATE", "AGE", "MODEL", "OUTPUT")
#: What a job is that is to run and that no process works on.
INTERRUPTED = "interrupted"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `fleet jobs`."""
    parser.add_argument("--json", action="store_true", help="print a JSON list")
    parser.add_argument("--state-dir", type=folder, metavar="DIR", help="the record's folder (~/.local/state/fleet)")


def main(args: argparse.Namespace) -> int:
    """Prints the table; 0."""
    state = StateDir(args.state_dir.absolute()) if args.state_dir else StateDir.default()
    jobs: list[JobStatus] = []
    if state.has_ledger():
        with Ledger.read(state) as ledger:
            jobs = ledger.jobs()
    holder = StateLock.holder(state)
    states = {job.record.id: state_in_words(job, holder) for job in jobs}
    if args.json:
        print(json.dumps([as_dict(job, states[job.record.id]) for job in jobs]))
    elif not jobs:
        print(f"no job is recorded in {state.root}")
    else:
        print(table(jobs, states, time.time()))
    return int(Exit.OK)


def state_in_words(job: JobStatus, holder: Holder | None) -> str:
    """The state of a job, `holder` being who works on its folder."""
    if job.record.state is JobState.RUNNING and (holder is None or holder.job != job.record.id):
        return INTERRUPTED
    return job.record.state.value


def as_dict(job: JobStatus, state: str) -> dict[str, object]:
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


def table(jobs: Sequence[JobStatus], states: Mapping[int, str], now: float) -> str:
    """The jobs as aligned columns; `states` by job id."""
    lines = [_HEAD, *[_cells(job, states[job.record.id], now) for job in jobs]]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def _cells(job: JobStatus, state: str, now: float) -> tuple[str, ...]:
    record, counts = job.record, job.counts
    more = "" if record.intake_complete else "+"
    return (
        str(record.id),
        record.spec.task.value,
        f"{counts.done}/{counts.requests}{more}",
        str(counts.failed),
        state,
        age(now - record.created),
        Path(record.spec.model).name,
        record.spec.output,
    )
