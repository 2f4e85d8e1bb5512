"""Writes the answers a job has so far, in input order, also while it runs.

  fleet results 3 -o answers.jsonl
  fleet results 3 | head

Requests without an outcome are left out; how many there are is said on stderr. Failed requests are listed in
OUT.errors.jsonl.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict

from coordinator.ledger import Ledger
from coordinator.preflight import check_output
from coordinator.results import STDOUT, write_results
from fleet.config import StateDir
from fleet.errors import Exit
from fleet.flags import folder, job_id, place


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `fleet results`."""
    parser.add_argument("job", type=job_id, metavar="JOB", help="the job's id, see `fleet jobs`")
    parser.add_argument(
        "-o",
        "--output",
        type=place,
        default=STDOUT,
        metavar="OUT",
        help="JSONL, Parquet if it ends in .parquet (stdout)",
    )
    parser.add_argument("--json", action="store_true", help="print what was written as JSON, on stderr beside stdout")
    parser.add_argument("--state-dir", type=folder, metavar="DIR", help="the record's folder (~/.local/state/fleet)")


def main(args: argparse.Namespace) -> int:
    """Writes the answers; 3 when some requests failed."""
    state = StateDir(args.state_dir.absolute()) if args.state_dir else StateDir.default()
    with Ledger.read(state) as ledger:
        job = ledger.job(args.job).record
        check_output(args.output, job.spec.inputs)
        counts = write_results(ledger, job, openai=ledger.is_openai(job.id), output=args.output)
    told = sys.stderr if args.output == STDOUT else sys.stdout
    if args.json:
        print(json.dumps({"job": job.id, "output": args.output, **asdict(counts)}), file=told)
    else:
        left = f", {counts.open} still open and left out" if counts.open else ""
        print(f"fleet: job {job.id}: {counts.done} done, {counts.failed} failed{left}", file=sys.stderr)
    return int(Exit.FAILED_REQUESTS if counts.failed else Exit.OK)
