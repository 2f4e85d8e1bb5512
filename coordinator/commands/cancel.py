"""Stops working on a job; what it has is kept.

  fleet cancel 3

A run that works on it notices within seconds, lets the rows in its batch finish and ends. `fleet results` gives what
is there, and the command that began the job takes it up again.
"""

from __future__ import annotations

import argparse
import json

from coordinator.ledger import Ledger
from fleet.config import StateDir
from fleet.errors import Exit
from fleet.flags import folder, job_id


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `fleet cancel`."""
    parser.add_argument("job", type=job_id, metavar="JOB", help="the job's id, see `fleet jobs`")
    parser.add_argument("--json", action="store_true", help="print the job's id and state as JSON")
    parser.add_argument("--state-dir", type=folder, metavar="DIR", help="the record's folder (~/.local/state/fleet)")


def main(args: argparse.Namespace) -> int:
    """Marks the job; 0, also when it was cancelled before."""
    state = StateDir(args.state_dir.absolute()) if args.state_dir else StateDir.default()
    job = Ledger.cancel(state, args.job)
    if args.json:
        print(json.dumps({"job": job.id, "state": job.state.value}))
    else:
        print(f"job {job.id} is {job.state.value}; `fleet results {job.id}` writes what it has")
    return int(Exit.OK)
