"""Follows a job of the fleet until it is over; Ctrl-C leaves it running.

fleet watch 3
fleet watch 3 --json      a line of JSON at each look, the last one when the job is over
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from typing import Any

from coordinator.client.whereabouts import add_place_flags, the_place
from fleet.errors import InterruptedRunError
from fleet.flags import job_id


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `fleet watch`."""
    parser.add_argument("job", type=job_id, metavar="JOB", help="the job's id, see `fleet jobs`")
    parser.add_argument("--json", action="store_true", help="print the job as JSON, a line at each look")
    add_place_flags(parser)


def main(args: argparse.Namespace) -> int:
    """Follows; the exit code is that of `fleet run`."""
    from coordinator.client.fleet_client import FleetClient
    from coordinator.client.following import Following, nobody_works, outcome, view
    from coordinator.screens.progress import Progress

    with FleetClient.reach(the_place(args)) as client, Progress(quiet=args.json) as progress:
        if not args.json and (alone := nobody_works(client)):
            print(f"fleet: {alone}", file=sys.stderr, flush=True)

        def show(job: Mapping[str, Any]) -> None:
            if args.json:
                print(json.dumps(job), flush=True)
            else:
                progress.show(view(job))

        try:
            last = Following(client, args.job)(show)
        except KeyboardInterrupt as error:
            raise InterruptedRunError(f"job {args.job} goes on without you") from error
    return int(outcome(last))
