"""Stops working on a job; what it has is kept.

  fleet cancel 3
  fleet cancel 3 --local      a job of this Mac's own record, not of its fleet

A `fleet run` that works on it notices within seconds, lets the rows in its batch finish and ends; a fleet calls the
job's rows off. `fleet results` gives what is there. The same `fleet run` takes its job up again; the same
`fleet submit` makes a new job. Neither computes again what is recorded.
"""

from __future__ import annotations

import argparse
import json

from coordinator.client.whereabouts import Place, add_place_flags, place_or_record, state_dir
from coordinator.control.running import Running
from coordinator.ledger.ledger import Ledger
from coordinator.ledger.lock import StateLock
from fleet.config import StateDir
from fleet.errors import Exit
from fleet.flags import job_id


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `fleet cancel`."""
    parser.add_argument("job", type=job_id, metavar="JOB", help="the job's id, see `fleet jobs`")
    parser.add_argument("--json", action="store_true", help="print the job's id and state as JSON")
    add_place_flags(parser, record=True)


def main(args: argparse.Namespace) -> int:
    """Marks the job; 0, also when it was cancelled before."""
    place = place_or_record(args)
    runs = place is None and _runs(state_dir(args), args.job)
    state = Ledger.cancel(state_dir(args), args.job).state.value if place is None else _of_fleet(args, place)
    if args.json:
        print(json.dumps({"job": args.job, "state": state}))
    elif runs:
        print(
            f"the run of job {args.job} was asked to stop: it finishes the rows in its batch, then writes what it has"
        )
    else:
        print(f"job {args.job} is {state}; `fleet results {args.job}` writes what it has")
    return int(Exit.OK)


def _runs(state: StateDir, job: int) -> bool:
    """Whether a `fleet run` works on the job: a fleet would call its rows off."""
    holder = StateLock.holder(state)
    return holder is not None and holder.job == job and Running.of(state) is None


def _of_fleet(args: argparse.Namespace, place: Place) -> str:
    from coordinator.client.fleet_client import FleetClient

    with FleetClient.reach(place) as client:
        return str(client.post(f"/fleet/jobs/{args.job}/cancel")["state"])
