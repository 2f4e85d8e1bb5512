"""Runs a backlog on this machine and writes every answer to a file.

  fleet run generate prompts.jsonl -m ./model -o answers.jsonl
  fleet run summarize papers/ -m org/name -o summaries.jsonl --max-tokens 120
  fleet run classify mails.csv --text-field body --labels work,private,spam -m ./model -o labels.jsonl

TASK      generate, summarize or classify
INPUT     JSONL (OpenAI batch lines, or objects with "prompt", "text" or "messages"), .csv, .tsv, .parquet, a text
          file, a folder of text files, or - for JSONL on standard input; several are read one after another
MODEL     a folder in MLX form, or a hub id
OUT       JSONL, Parquet if it ends in .parquet, or - for standard output; failed requests also go to
          OUT.errors.jsonl

The same command after a crash or Ctrl-C goes on where it was: nothing recorded is computed again.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

from fleet.errors import UsageError
from fleet.flags import folder, integer, one_of, place, positive
from fleet.job import Task

_BATCH_HELP = "rows decoding together at most (the engine measures which batch is worth it)"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `fleet run`."""
    tasks = [task.value for task in Task]
    parser.add_argument("task", type=one_of(tasks), metavar="TASK", help="what to do with each row")
    parser.add_argument("inputs", type=place, nargs="+", metavar="INPUT", help="the backlog")
    parser.add_argument("-m", "--model", type=place, required=True, help="model folder or hub id")
    parser.add_argument(
        "-o", "--output", type=place, required=True, metavar="OUT", help="where the answers go, - for stdout"
    )
    _add_answer_flags(parser)
    _add_input_flags(parser)
    _add_run_flags(parser)


def _add_answer_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("answers")
    group.add_argument("--max-tokens", type=positive, metavar="N", help="longest answer (512; summarize 160)")
    group.add_argument("--temperature", type=_fraction(0.0, 2.0), metavar="T", help="0 is greedy and the default")
    group.add_argument("--top-p", type=_fraction(0.0, 1.0), metavar="P", help="nucleus mass kept (1)")
    group.add_argument("--seed", type=integer, metavar="N", help="makes sampled answers repeatable")
    group.add_argument("--stop", action="append", default=[], metavar="TEXT", help="ends an answer; may be repeated")
    group.add_argument("--system", metavar="TEXT", help="system message for requests that bring none")
    group.add_argument(
        "--prompt-template", metavar="TEXT|FILE", help="instruction in which {text} stands for the row's text"
    )
    group.add_argument(
        "--think",
        action=argparse.BooleanOptionalAction,
        help="lets models whose chat template has a thinking switch think first, or not (not)",
    )
    group.add_argument("--labels", type=_labels, default=(), metavar="A,B,C", help="classify: the answers allowed")
    group.add_argument("--no-split", action="store_true", help="summarize: too long a text is an error, not split")


def _add_input_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("input")
    group.add_argument("--id-field", metavar="NAME", help="field or column that names a row (custom_id or id)")
    group.add_argument("--text-field", metavar="NAME", help="field or column that holds the text (text or prompt)")
    group.add_argument("--limit", type=positive, metavar="N", help="only the first N rows")


def _add_run_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("running")
    group.add_argument("--fresh", action="store_true", help="compute everything anew, recorded or not")
    group.add_argument("--dry-run", action="store_true", help="read and check the input, compute nothing")
    group.add_argument("--batch", type=positive, default=0, metavar="N", help=_BATCH_HELP)
    group.add_argument(
        "--memory",
        type=_bytes,
        default=0,
        metavar="SIZE",
        help="memory the engine may use, weights included, like 12G or 800M (what MLX says the machine allows)",
    )
    group.add_argument("--state-dir", type=folder, metavar="DIR", help="the record's folder (~/.local/state/fleet)")
    group.add_argument("--json", action="store_true", help="print the report as JSON, show no progress bar")


def _bytes(text: str) -> int:
    number, unit = (text[:-1], text[-1].upper()) if text[-1:].upper() in _UNITS else (text, "")
    try:
        value = float(number) * _UNITS.get(unit, 1)
    except ValueError:
        value = 0.0
    if not 1 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"expected a size like 12G, 800M or a number of bytes, found {text!r}")
    return int(value)


_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def _fraction(low: float, high: float) -> Callable[[str], float]:
    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"expected a number from {low:g} to {high:g}, found {text!r}")
        return value

    return parse


def _labels(text: str) -> tuple[str, ...]:
    labels = tuple(label.strip() for label in text.split(","))
    if len(labels) < 2 or len(set(labels)) < len(labels) or not all(labels):
        raise argparse.ArgumentTypeError(f"expected two or more different labels with commas between, found {text!r}")
    return labels


def main(args: argparse.Namespace) -> int:
    """Runs the backlog; 0 when all requests are done, 3 when some failed."""
    from coordinator.backlog_run import run_backlog

    if (args.task == Task.CLASSIFY) != bool(args.labels):
        raise UsageError("classify needs --labels a,b,c" if not args.labels else "--labels goes with classify only")
    if args.no_split and args.task != Task.SUMMARIZE:
        raise UsageError("--no-split goes with summarize only")
    return int(run_backlog(args))
