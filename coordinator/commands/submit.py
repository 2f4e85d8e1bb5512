"""Gives a backlog to the fleet and prints the job's id; the fleet works on it, whatever becomes of this Mac.

  fleet submit generate prompts.jsonl -m org/name
  fleet submit summarize papers/ -m org/name --wait -o summaries.jsonl
  fleet submit classify mails.csv --text-field body --labels work,private -m org/name --priority 5

TASK, INPUT and the flags for answers and input are those of `fleet run`. MODEL is a hub id, or a folder that is at the
same path on the coordinator's Mac and the workers'. Inputs are copied to the coordinator.

With --wait it stays until the job is over, writes OUT and ends as `fleet run` would; Ctrl-C leaves the job running.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coordinator import backlog_flags
from coordinator.client.whereabouts import add_place_flags, the_place
from coordinator.intake.options import IntakeOptions
from fleet.errors import Exit, FleetError, InterruptedRunError, UsageError
from fleet.flags import integer, place
from fleet.job import Task

if TYPE_CHECKING:
    from coordinator.client.fleet_client import FleetClient

_ENDPOINT, _EMBEDDINGS = "/v1/chat/completions", "/v1/embeddings"
_WINDOW = "24h"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `fleet submit`."""
    backlog_flags.add_backlog(parser)
    backlog_flags.add_answer_flags(parser)
    backlog_flags.add_input_flags(parser)
    group = parser.add_argument_group("job")
    group.add_argument("--wait", action="store_true", help="stay until the job is over")
    group.add_argument("-o", "--output", type=place, metavar="OUT", help="with --wait: where the answers go")
    group.add_argument("--priority", type=integer, default=0, metavar="N", help="higher goes first (0)")
    group.add_argument("--fresh", action="store_true", help="compute everything anew, recorded or not")
    group.add_argument("--json", action="store_true", help="print the job as JSON, show no progress bar")
    add_place_flags(parser)


def main(args: argparse.Namespace) -> int:
    """Submits; with --wait the exit code is that of `fleet run`."""
    from coordinator.client.fleet_client import FleetClient
    from coordinator.client.following import nobody_works
    from coordinator.intake.inputs import check_inputs
    from coordinator.outputs.preflight import check_output

    backlog_flags.check_backlog(args)
    if args.output and not args.wait:
        raise UsageError("-o goes with --wait; without it, `fleet results JOB -o OUT` writes the answers later")
    check_inputs(args.inputs)
    if args.output:
        check_output(args.output, args.inputs)
    with FleetClient.reach(the_place(args)) as client:
        job = _submit(client, args)
        if not args.json and (alone := nobody_works(client)):
            _say(alone)
        if not args.wait:
            print(json.dumps(job) if args.json else job["id"])
            if not args.json:
                _say(f"`fleet watch {job['id']}` follows it, `fleet results {job['id']} -o OUT` writes the answers")
            return int(Exit.OK)
        return int(_wait(client, args, job["id"]))


def _submit(client: FleetClient, args: argparse.Namespace) -> Any:
    """Sends the inputs and orders the job; uploads of an order that is refused are taken back."""
    from coordinator.client.job_form import JobForm, write_form
    from coordinator.client.parcels import parcel
    from coordinator.client.upload_bar import UploadBar

    options = _options(args)
    ids: list[str] = []
    with ExitStack() as refused:
        refused.callback(_take_back, client, ids)
        for name in args.inputs:
            with UploadBar(parcel(name), quiet=args.json) as bar:
                ids.append(client.upload(bar.parcel, bar.sent))
        form = JobForm(
            options=options,
            priority=args.priority,
            fresh=args.fresh,
            more_inputs=tuple(ids[1:]),
            form="npy" if options.task is Task.EMBED else "jsonl",  # as text, vectors take far more disk
        )
        batch = client.post(
            "/v1/batches",
            {
                "input_file_id": ids[0],
                "endpoint": _EMBEDDINGS if options.task is Task.EMBED else _ENDPOINT,
                "completion_window": _WINDOW,
                "metadata": write_form(form),
            },
        )
        refused.pop_all()
    return client.get(f"/fleet/jobs/{batch['id'].removeprefix('batch_')}")


def _options(args: argparse.Namespace) -> IntakeOptions:
    """What the flags say, with nothing in it that only this Mac can read."""
    from coordinator.intake.prompts import read_template

    options = backlog_flags.intake_options(args)
    folder = Path(options.model).expanduser()
    if folder.is_dir():
        options = replace(options, model=str(folder.absolute()))
    if options.prompt_template is not None:
        options = replace(options, prompt_template=read_template(options.prompt_template))
    return options


def _take_back(client: FleetClient, ids: Sequence[str]) -> None:
    for id in ids:
        with suppress(FleetError):  # what went wrong first is told
            client.delete(f"/v1/files/{id}")


def _wait(client: FleetClient, args: argparse.Namespace, job: int) -> Exit:
    from coordinator.client.fetching import fetch
    from coordinator.client.following import Following, outcome, view
    from coordinator.screens.progress import Progress

    _say(f"job {job}; Ctrl-C leaves it running", quiet=args.json)
    try:
        with Progress(quiet=args.json) as progress:
            last = Following(client, job)(lambda now: progress.show(view(now)))
        begun = last["state"] != "failed" or last["requests"] > 0  # else OUT stays what it was
        if args.output and begun:
            fetch(client, job, args.output)
    except KeyboardInterrupt as error:
        raise InterruptedRunError(
            f"job {job} goes on without you; `fleet watch {job}` follows it, `fleet cancel {job}` ends it"
        ) from error
    if begun or args.json:
        _tell(args, last, args.output if begun else None)
    return outcome(last)


def _tell(args: argparse.Namespace, job: Mapping[str, Any], written: str | None) -> None:
    """How the job ended: on stderr where the answers themselves go to stdout."""
    from coordinator.client.fetching import failures_in
    from coordinator.screens import failures

    told = sys.stderr if args.output == "-" else sys.stdout
    if args.json:
        print(json.dumps({**job, "written": written}), file=told)
        return
    ended = f"{job['done']:,} of {job['requests']:,} done, {job['failed']:,} failed"
    where = args.output or f"`fleet results {job['id']} -o OUT` writes the answers"
    print(f"job {job['id']}: {ended}; {where}", file=told)
    if args.output and args.output != "-":
        for line in failures.lines(failures_in(args.output)):
            print(line, file=told)


def _say(text: str, *, quiet: bool = False) -> None:
    if not quiet:
        print(f"fleet: {text}", file=sys.stderr, flush=True)
