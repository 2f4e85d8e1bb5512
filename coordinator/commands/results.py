"""Writes the answers a job has so far, in input order, also while it runs.

  fleet results 3 -o answers.jsonl
  fleet results 3 --local -o answers.jsonl      a job of this Mac's own record, not of its fleet
  fleet results 3 | head

Requests without an outcome are left out; how many there are is said on stderr. Failed requests are listed in
OUT.errors.jsonl. Of a job that failed as a whole the reason is said, and OUT stays as it was when there is no answer.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict

from coordinator.client.whereabouts import Place, add_place_flags, place_or_record, state_dir
from coordinator.ledger.ledger import Ledger
from coordinator.outputs.preflight import check_output
from coordinator.outputs.results import STDOUT, ResultCounts, write_results
from coordinator.screens.wording import job_failed
from fleet.errors import Exit, FleetError
from fleet.flags import job_id, place
from fleet.job import JobState


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `fleet results`."""
    parser.add_argument("job", type=job_id, metavar="JOB", help="the job's id, see `fleet jobs`")
    parser.add_argument(
        "-o",
        "--output",
        type=place,
        default=STDOUT,
        metavar="OUT",
        help="JSONL, Parquet if it ends in .parquet, of vectors NumPy if it ends in .npy (stdout)",
    )
    parser.add_argument("--json", action="store_true", help="print what was written as JSON, on stderr beside stdout")
    add_place_flags(parser, record=True)


def main(args: argparse.Namespace) -> int:
    """Writes the answers; 3 when some requests failed. Raises FleetError, once they are written, of a failed job."""
    place = place_or_record(args)
    counts, problem = _recorded(args) if place is None else _of_fleet(args, place)
    told = sys.stderr if args.output == STDOUT else sys.stdout
    if args.json:
        print(json.dumps({"job": args.job, "output": args.output, **asdict(counts)}), file=told)
    else:
        left = f", {counts.open:,} still open and left out" if counts.open else ""
        print(f"fleet: job {args.job}: {counts.done:,} done, {counts.failed:,} failed{left}", file=sys.stderr)
    if problem:
        raise FleetError(problem)
    return int(Exit.FAILED_REQUESTS if counts.failed else Exit.OK)


def _of_fleet(args: argparse.Namespace, place: Place) -> tuple[ResultCounts, str]:
    """What was written, and what the job failed with."""
    from coordinator.client.fetching import fetch
    from coordinator.client.fleet_client import FleetClient

    check_output(args.output, [])
    with FleetClient.reach(place) as client:
        job = client.get(f"/fleet/jobs/{args.job}")
        problem = job_failed(args.job, job["error"]) if job["state"] == "failed" else ""
        if problem and not job["requests"]:
            return ResultCounts(), problem
        return fetch(client, args.job, args.output), problem


def _recorded(args: argparse.Namespace) -> tuple[ResultCounts, str]:
    """What was written, and what the job failed with."""
    with Ledger.read(state_dir(args)) as ledger:
        status = ledger.job(args.job)
        job = status.record
        check_output(args.output, job.spec.inputs)
        problem = job_failed(job.id, job.problem) if job.state is JobState.FAILED else ""
        if problem and not status.counts.requests:
            return ResultCounts(), problem
        return write_results(ledger, job, openai=ledger.is_openai(job.id), output=args.output), problem
