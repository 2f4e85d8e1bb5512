"""The whole of `fleet run`, from parsed flags to the exit code: check, take in, run, write, report."""

from __future__ import annotations

import argparse
import json
import logging
import secrets
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path

from coordinator.backlog_flags import intake_options
from coordinator.control.garbage import collect_seldom
from coordinator.control.job_run import JobRun
from coordinator.control.local_run import LocalRun, RunOptions, RunResult
from coordinator.control.processes import Processes
from coordinator.intake.dry_run import dry_run
from coordinator.intake.feed import Feed
from coordinator.intake.intake import Intake, IntakeOptions
from coordinator.ledger.ledger import Ledger
from coordinator.outputs.preflight import check_output, check_space
from coordinator.outputs.results import check_kind, write_results
from coordinator.planning.planning import this_machine
from coordinator.planning.run_plan import RunPlan
from coordinator.records import JobRecord, JobSpec, NewRequest
from coordinator.screens.progress import Progress
from coordinator.screens.report import Report
from fleet.config import StateDir
from fleet.errors import Exit, InterruptedRunError
from fleet.job import JobState, Task
from fleet.model import find_model, weights_hash

LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def run_backlog(args: argparse.Namespace) -> Exit:
    """Does what `fleet run` was asked; FAILED_REQUESTS when some requests ended without an answer."""
    say = _sayer(quiet=args.json)
    collect_seldom()
    inputs = [name if name == "-" else str(Path(name).absolute()) for name in args.inputs]
    check_kind(args.output, Task(args.task))
    check_output(args.output, inputs)
    state = StateDir(args.state_dir.absolute()) if args.state_dir else StateDir.default()
    state.make()
    check_space([state.root] + ([] if args.output == "-" else [Path(args.output).absolute().parent]), inputs)
    folder = find_model(args.model)
    with Ledger.open(state) as ledger:
        logging.basicConfig(filename=state.logs / "coordinator.log", level=logging.INFO, format=LOG_FORMAT)
        processes = Processes(state)
        processes.clear()
        model_hash = weights_hash(folder, state.root / "hashes.json")
        options = intake_options(args)
        intake = Intake(inputs, options, folder, model_hash)
        if args.dry_run:
            status = dry_run(intake, as_json=args.json)
            _warn(intake, say)
            return status
        spec = _spec(args, inputs, folder, model_hash, options)
        planned = RunPlan(this_machine(state, folder, model_hash), options.task, model_hash, ledger.jobs())
        job, known = ledger.begin_job(spec, _salt(ledger, spec) if args.fresh else "")
        intake.use_salt(job.salt)
        signature = intake.signature()  # of now: what changes while it is read is read again by the next run
        feed = _feed(ledger, job, planned.watch(intake.chunks()), signature, say, known=known)
        run = JobRun(job, ledger, intake.reduce, feed=feed, signature=signature)
        local = LocalRun(run, ledger, state, processes, RunOptions(cap=args.batch, memory_bytes=args.memory))
        with Progress(quiet=args.json) as progress:
            result = local.go(progress.show)
        result = replace(result, planned_s=planned.seconds(result.computed))
        _warn(intake, say)
        return _finish(args, ledger, job, intake, result)


def _sayer(*, quiet: bool) -> Callable[[str], None]:
    def say(text: str) -> None:
        if not quiet:
            with suppress(OSError):  # a terminal that went away must not end a run
                print(f"fleet: {text}", file=sys.stderr, flush=True)

    return say


def _warn(intake: Intake, say: Callable[[str], None]) -> None:
    for warning in intake.warnings:
        say(f"warning: {warning}")


def _salt(ledger: Ledger, spec: JobSpec) -> str:
    """What makes the rows of `--fresh` new: that of the same command if it was broken off, else another."""
    for status in reversed(ledger.jobs()):
        if status.record.spec == spec and status.record.salt and status.record.state is not JobState.FINISHED:
            return status.record.salt
    return secrets.token_hex(8)


def _spec(
    args: argparse.Namespace, inputs: list[str], folder: Path, model_hash: str, options: IntakeOptions
) -> JobSpec:
    return JobSpec(
        task=options.task,
        model=str(folder),
        model_hash=model_hash,
        inputs=tuple(inputs),
        output=args.output if args.output == "-" else str(Path(args.output).absolute()),
        options=json.dumps(asdict(options), sort_keys=True),
    )


def _feed(
    ledger: Ledger,
    job: JobRecord,
    chunks: Iterator[list[NewRequest]],
    signature: str,
    say: Callable[[str], None],
    *,
    known: bool,
) -> Feed | None:
    """None when the ledger already holds this very input; else the input is read (again)."""
    if known:
        counts = ledger.counts(job.id)
        say(f"resuming job {job.id}: {counts.done} of {counts.requests} done")
    if known and job.intake_complete and signature and signature == job.signature:
        return None
    ledger.reset_intake(job.id)
    return Feed(chunks)


def _finish(args: argparse.Namespace, ledger: Ledger, job: JobRecord, intake: Intake, result: RunResult) -> Exit:
    write_results(ledger, job, openai=intake.is_openai, output=args.output)
    ledger.end_job(job.id, JobState.CANCELLED if result.cancelled else JobState.FINISHED)
    Report(job, result, ledger.answers(job.id)).show(as_json=args.json, to_stderr=args.output == "-")
    if result.cancelled:
        raise InterruptedRunError(
            f"job {job.id} was cancelled with {result.counts.open:,} requests open; the same command takes it up again"
        )
    return Exit.FAILED_REQUESTS if result.counts.failed else Exit.OK
