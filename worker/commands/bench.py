"""Times a model on this machine at growing batch sizes, and finds the knee: the batch worth running.

  fleet bench ./model
  fleet bench org/name --long
  fleet bench ./model --batch-sizes 1,8,32 --max-tokens 200 --runs 5
  fleet bench ./model --long --plot bench.png

A decode step reads every weight once, whatever the batch, so more rows together give more tokens per second, until
the arithmetic or the reading of their contexts takes over. The knee is the smallest batch with 95 % of the best
total. Long answers have a knee of their own, often a smaller one: --long shows it.

TOTAL is new tokens per second of all rows together, PER ROW that of one, PROMPT the tokens per second at which
prompts are read. Each figure is a median over the runs; SPREAD tells how far the runs lie apart. Prompts are random
and no two are equal.

After the tables the knees that `fleet run` goes by are measured, where they are not known, which can take as long
again; --remeasure throws away what is known first. Ctrl-C there keeps the tables and every figure measured so far,
and the next measurement goes on from them. `fleet run` also measures by itself when a backlog is worth it.

Let nothing else run beside it; on a laptop, plug it in.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fleet import leash
from fleet.config import StateDir
from fleet.errors import EngineError, Exit, InterruptedRunError, ModelError, UsageError
from fleet.flags import folder, place, positive
from worker import plot, trial
from worker.blas import engine_environment
from worker.engine_process import ended_in_words
from worker.trial import Table

MAX_TOKENS = 100
LONG_TOKENS = 1500
PROMPT_TOKENS = 128
RUNS = 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `fleet bench`."""
    parser.add_argument("model", type=place, metavar="MODEL", help="model folder or hub id")
    parser.add_argument(
        "--batch-sizes", type=_sizes, default=(), metavar="A,B,C", help="batches to time (until nothing is gained)"
    )
    parser.add_argument(
        "--max-tokens", type=positive, default=MAX_TOKENS, metavar="N", help=f"new tokens a row ({MAX_TOKENS})"
    )
    parser.add_argument(
        "--long",
        type=positive,
        nargs="?",
        const=LONG_TOKENS,
        default=0,
        metavar="N",
        help=f"also a table of long answers ({LONG_TOKENS} new tokens)",
    )
    parser.add_argument(
        "--prompt-tokens", type=positive, default=PROMPT_TOKENS, metavar="N", help=f"tokens a prompt ({PROMPT_TOKENS})"
    )
    parser.add_argument("--runs", type=positive, default=RUNS, metavar="N", help=f"times each batch is run ({RUNS})")
    parser.add_argument("--remeasure", action="store_true", help="forget what is known of this model's knees first")
    parser.add_argument("--plot", type=Path, metavar="PNG", help="draw the tables as a picture")
    parser.add_argument("--state-dir", type=folder, metavar="DIR", help="the record's folder (~/.local/state/fleet)")
    parser.add_argument("--json", action="store_true", help="print everything as JSON, show no progress")


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(positive(part.strip()) for part in text.split(","))


@dataclass(slots=True, kw_only=True)
class Findings:
    """What the child has told so far."""

    model: dict[str, Any] = field(default_factory=dict)
    tables: list[Table] = field(default_factory=list)
    knees: list[dict[str, Any]] = field(default_factory=list)


def main(args: argparse.Namespace) -> int:
    """Runs the benchmark and prints its tables; 0."""
    if args.plot:
        plot.check(args.plot)
    state = StateDir(args.state_dir.absolute()) if args.state_dir else StateDir.default()
    state.make()
    found = Findings()
    for message in _told(args, state):
        _take(found, message, quiet=args.json)
    if args.json:
        print(json.dumps(_as_dict(args, found)))
    for line in [] if args.json else _closing(args, found):
        print(line)
    if args.plot:
        plot.draw(found.tables, f"{Path(args.model).name} on {found.model.get('machine', 'this machine')}", args.plot)
        _say(f"drawn: {args.plot}", quiet=args.json)
    return int(Exit.OK)


def _told(args: argparse.Namespace, state: StateDir) -> Iterator[dict[str, Any]]:
    """What the child that computes tells; it ends with us, whatever happens. Raises what went wrong in it."""
    reader, writer = os.pipe()
    try:
        with (state.logs / "bench.log").open("ab") as log:
            child = leash.start(
                _command(args, state, writer), log=log, env=engine_environment(os.environ), pass_fds=(writer,)
            )
    finally:
        os.close(writer)
    try:
        with os.fdopen(reader) as lines:
            for line in lines:
                yield json.loads(line)
        status = child.wait()
    except KeyboardInterrupt:
        raise InterruptedRunError(
            "interrupted; tables that were printed are whole, and what was measured of knees is kept"
        ) from None
    finally:
        _end(child)
    if status:
        raise EngineError(f"the benchmark ended ({ended_in_words(status)}): {state.logs / 'bench.log'} says why")


def _command(args: argparse.Namespace, state: StateDir, fd: int) -> list[str]:
    command = [sys.executable, "-m", "worker.bench", "--fd", str(fd), "--model", args.model, "--state", str(state.root)]
    command += ["--max-tokens", str(args.max_tokens), "--long", str(args.long)]
    command += ["--prompt-tokens", str(args.prompt_tokens), "--runs", str(args.runs)]
    command += ["--remeasure"] if args.remeasure else []
    return command + (["--batch-sizes", *map(str, args.batch_sizes)] if args.batch_sizes else [])


def _end(child: subprocess.Popen[bytes]) -> None:
    if child.stdin is not None:
        child.stdin.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(leash.GRACE_S)
    if child.poll() is None:
        child.kill()
        child.wait()


def _take(found: Findings, message: dict[str, Any], *, quiet: bool) -> None:
    match message:
        case {"say": text}:
            _say(text, quiet=quiet)
        case {"model": model}:
            found.model = model
        case {"table": plain}:
            found.tables.append(Table.from_dict(plain))
            if not quiet:
                print(trial.text(found.tables[-1]) + "\n", flush=True)
        case {"knees": knees}:
            found.knees = knees
        case {"error": text, "usage": usage}:
            raise UsageError(text) if usage else ModelError(text)
        case _:
            raise EngineError("the benchmark's process told something unknown")


def _closing(args: argparse.Namespace, found: Findings) -> Iterator[str]:
    """What stands under the tables."""
    for knee in found.knees:
        yield (
            f"fleet run decodes {knee['rows']} rows of up to {knee['bucket_tokens']:,} tokens together on this machine"
        )
    if not args.long:
        yield f"long answers have a knee of their own: --long adds a table of {LONG_TOKENS:,} new tokens"


def _as_dict(args: argparse.Namespace, found: Findings) -> dict[str, Any]:
    tables = [table.as_dict() for table in found.tables]
    return {"model": args.model, **found.model, "runs": args.runs, "tables": tables, "knees": found.knees}


def _say(text: str, *, quiet: bool) -> None:
    if not quiet:
        print(f"fleet: {text}", file=sys.stderr)
