"""Runs a backlog on this machine and writes every answer to a file.

  fleet run generate prompts.jsonl -m ./model -o answers.jsonl
  fleet run summarize papers/ -m org/name -o summaries.jsonl --max-tokens 120
  fleet run classify mails.csv --text-field body --labels work,private,spam -m ./model -o labels.jsonl
  fleet run embed papers/ -m BAAI/bge-small-en-v1.5 -o vectors.parquet

TASK      generate, summarize, classify or embed
INPUT     JSONL (OpenAI batch lines, or objects with "prompt", "text" or "messages"), .csv, .tsv, .parquet, a text
          file, a folder of text files, or - for JSONL on standard input; several are read one after another
MODEL     a folder in MLX form, or a hub id; for embed, a folder as sentence-transformers has it
OUT       JSONL, Parquet if it ends in .parquet, or - for standard output; for embed also .npy, with OUT.ids.jsonl
          and OUT.meta.json beside it; failed requests also go to OUT.errors.jsonl

The same command after a crash or Ctrl-C goes on where it was: nothing recorded is computed again.
"""

from __future__ import annotations

import argparse

from coordinator import backlog_flags
from fleet.flags import byte_size, folder, place, positive

_BATCH_HELP = "rows decoding together at most (the engine measures which batch is worth it)"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `fleet run`."""
    backlog_flags.add_backlog(parser)
    parser.add_argument(
        "-o", "--output", type=place, required=True, metavar="OUT", help="where the answers go, - for stdout"
    )
    backlog_flags.add_answer_flags(parser)
    backlog_flags.add_input_flags(parser)
    _add_run_flags(parser)


def _add_run_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("running")
    group.add_argument("--fresh", action="store_true", help="compute everything anew, recorded or not")
    group.add_argument("--dry-run", action="store_true", help="read and check the input, compute nothing")
    group.add_argument("--batch", type=positive, default=0, metavar="N", help=_BATCH_HELP)
    group.add_argument(
        "--memory",
        type=byte_size,
        default=0,
        metavar="SIZE",
        help="memory the engine may use, weights included, like 12G or 800M (what MLX says the machine allows)",
    )
    group.add_argument("--state-dir", type=folder, metavar="DIR", help="the record's folder (~/.local/state/fleet)")
    group.add_argument("--json", action="store_true", help="print the report as JSON, show no progress bar")


def main(args: argparse.Namespace) -> int:
    """Runs the backlog; 0 when all requests are done, 3 when some failed."""
    from coordinator.control.backlog_run import run_backlog

    backlog_flags.check_backlog(args)
    return int(run_backlog(args))
