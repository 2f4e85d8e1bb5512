"""Lists jobs, the newest last: those of the fleet this Mac belongs to, else those recorded here.

  fleet jobs
  fleet jobs --json
  fleet jobs --local        this Mac's own record

A job recorded here is running, finished, cancelled or interrupted: that one ended before it was done, and nobody works
on it now. A job of the fleet may also be queued, reading, writing or failed.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

from coordinator.client.whereabouts import Place, add_place_flags, place_or_record, state_dir
from coordinator.ledger.ledger import Ledger
from coordinator.ledger.lock import Holder, StateLock
from coordinator.records import JobStatus
from coordinator.screens.job_table import as_dict, table
from fleet.config import StateDir
from fleet.errors import Exit
from fleet.job import JobState

#: What a job is that is to run and that no process works on.
INTERRUPTED = "interrupted"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `fleet jobs`."""
    parser.add_argument("--json", action="store_true", help="print a JSON list")
    add_place_flags(parser, record=True)


def main(args: argparse.Namespace) -> int:
    """Prints the table; 0."""
    place, state = place_or_record(args), state_dir(args)
    jobs = _recorded(state) if place is None else _of_fleet(place)
    if args.json:
        print(json.dumps(jobs))
    elif not jobs:
        print(f"no job is recorded in {state.root}" if place is None else "the fleet has no jobs")
    else:
        print(table(jobs, time.time(), inputs=place is not None))
        for job in jobs:
            if job.get("error"):
                print(f"job {job['id']} failed: {job['error']}")
    return int(Exit.OK)


def _of_fleet(place: Place) -> list[dict[str, Any]]:
    from coordinator.client.fleet_client import FleetClient

    with FleetClient.reach(place) as client:
        jobs: list[dict[str, Any]] = client.get("/fleet/jobs")
    return jobs


def _recorded(state: StateDir) -> list[dict[str, Any]]:
    jobs: list[JobStatus] = []
    if state.has_ledger():
        with Ledger.read(state) as ledger:
            jobs = ledger.jobs()
    holder = StateLock.holder(state)
    return [as_dict(job, state_in_words(job, holder)) for job in jobs]


def state_in_words(job: JobStatus, holder: Holder | None) -> str:
    """The state of a job, `holder` being who works on its folder."""
    if job.record.state is JobState.RUNNING and (holder is None or holder.job != job.record.id):
        return INTERRUPTED
    return job.record.state.value
