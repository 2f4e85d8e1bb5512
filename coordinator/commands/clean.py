"""Forgets ended jobs, with every answer no other job uses, and gives the disk they took back.

  fleet clean          every job that has finished or was cancelled
  fleet clean 3 4      these, also interrupted ones

What was sent to a fleet for them goes too. Outputs that were written and the demo's files stay where they are; a later
run computes the forgotten rows anew.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict

from coordinator.ledger.ledger import Ledger
from coordinator.records import Cleaned, JobStatus
from coordinator.screens.wording import counted
from fleet.config import StateDir
from fleet.errors import Exit
from fleet.flags import folder, job_id
from fleet.job import JobState

#: Less than this freed is not worth a word.
_TOLD_BYTES = 100_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `fleet clean`."""
    parser.add_argument("jobs", type=job_id, nargs="*", metavar="JOB", help="ids of jobs (all that have ended)")
    parser.add_argument("--json", action="store_true", help="print what was removed as JSON")
    parser.add_argument("--state-dir", type=folder, metavar="DIR", help="the record's folder (~/.local/state/fleet)")


def main(args: argparse.Namespace) -> int:
    """Forgets the jobs; 0."""
    from coordinator.api.batches import forget_batches

    state = StateDir(args.state_dir.absolute()) if args.state_dir else StateDir.default()
    cleaned, kept = Cleaned(), 0
    if state.has_ledger() or args.jobs:
        Ledger.read(state).close()  # says so when there is none, before one is made
        with Ledger.open(state) as ledger:  # holding the folder, we know that no job of it runs
            jobs = [ledger.job(job) for job in args.jobs] or ledger.jobs()
            chosen = choose(jobs, named=bool(args.jobs))
            kept = len(jobs) - len(chosen) if not args.jobs else 0
            if chosen:
                cleaned = ledger.clean(chosen)
                forget_batches(state, chosen)
    if args.json:
        print(json.dumps(asdict(cleaned)))
    else:
        print(text(cleaned, kept))
    return int(Exit.OK)


def choose(jobs: Sequence[JobStatus], *, named: bool) -> list[int]:
    """The ids of those to forget, none of which runs: all that were named, else those that have ended."""
    return sorted({job.record.id for job in jobs if named or job.record.state is not JobState.RUNNING})


def text(cleaned: Cleaned, kept: int) -> str:
    """What was forgotten, and what was not, for a person."""
    said = ["nothing to forget"]
    if cleaned.jobs:
        gone = f"{counted(cleaned.jobs, 'job')}, {counted(cleaned.requests, 'request')}"
        size = f", {cleaned.freed_bytes / 1e6:.1f} MB freed" if cleaned.freed_bytes >= _TOLD_BYTES else ""
        said = [f"{gone} and {counted(cleaned.rows, 'row')} forgotten{size}"]
    if cleaned.needed_by:
        said.append(f"answers kept: job {cleaned.needed_by[0]} was interrupted while it read its input again")
    if kept:
        them = "it" if kept == 1 else "them"
        said.append(f"{counted(kept, 'interrupted job')} kept: name {them} to forget {them} too")
    return "; ".join(said)
