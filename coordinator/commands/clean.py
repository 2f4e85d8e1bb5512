"""Forgets ended jobs, with every answer no other job uses, and gives the disk they took back.

  fleet clean          every job that has finished or was cancelled
  fleet clean 3 4      only these

Outputs that were written stay where they are; a later run computes the forgotten rows anew.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from coordinator.ledger import Ledger
from coordinator.records import Cleaned, JobStatus
from fleet.config import StateDir
from fleet.errors import Exit, UsageError
from fleet.flags import job_id
from fleet.job import JobState


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `fleet clean`."""
    parser.add_argument("jobs", type=job_id, nargs="*", metavar="JOB", help="ids of ended jobs (all of them)")
    parser.add_argument("--json", action="store_true", help="print what was removed as JSON")
    parser.add_argument("--state-dir", type=Path, metavar="DIR", help="the record's folder (~/.local/state/fleet)")


def main(args: argparse.Namespace) -> int:
    """Forgets the jobs; 0."""
    state = StateDir(args.state_dir.absolute()) if args.state_dir else StateDir.default()
    cleaned = Cleaned()
    if state.ledger.exists() or args.jobs:
        Ledger.read(state).close()  # says so when there is none, before one is made
        with Ledger.open(state) as ledger:
            chosen = choose([ledger.job(job) for job in args.jobs] or ledger.jobs(), named=bool(args.jobs))
            cleaned = ledger.clean(chosen) if chosen else cleaned
    if args.json:
        print(json.dumps(asdict(cleaned)))
    else:
        size = f"{cleaned.freed_bytes / 1e6:.1f} MB freed"
        print(f"{cleaned.jobs} jobs, {cleaned.requests} requests and {cleaned.rows} rows forgotten, {size}")
    return int(Exit.OK)


def choose(jobs: Sequence[JobStatus], *, named: bool) -> list[int]:
    """The ids of those that have ended; UsageError when one that was named has not."""
    ended = {job.record.id for job in jobs if job.record.state is not JobState.RUNNING}
    for job in jobs:
        if named and job.record.id not in ended:
            raise UsageError(f"job {job.record.id} has not ended: let it finish, or cancel it first")
    return sorted(ended)
