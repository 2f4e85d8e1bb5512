"""Says how long a backlog will take, before anything is computed.

  fleet plan prompts.jsonl -m ./model
  fleet plan summarize papers/ -m org/name --max-tokens 120
  fleet plan classify mails.csv --labels work,private,spam -m ./model --watts 60 --price 0.32

Reads and tokenises the whole input like `fleet run --dry-run`, then reckons with the speeds that the Macs of the fleet
tell, if this Mac belongs to one; else, or with --local, with what was measured here: `fleet bench MODEL` measures it,
and so does every longer run. TASK (generate unless given), INPUT and the flags of
answers and input are those of `fleet run`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from coordinator import backlog_flags
from coordinator.client.whereabouts import add_place_flags
from coordinator.planning.tariff import add_tariff_flags, tariff
from fleet.errors import Exit, UsageError
from fleet.flags import did_you_mean, place
from fleet.job import Task


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `fleet plan`."""
    parser.add_argument(
        "inputs", type=place, nargs="+", metavar="[TASK] INPUT", help="what to do with each row, and the backlog"
    )
    parser.add_argument("-m", "--model", type=place, required=True, help="model folder or hub id")
    backlog_flags.add_answer_flags(parser)
    backlog_flags.add_input_flags(parser)
    add_tariff_flags(parser)
    parser.add_argument("--json", action="store_true", help="print the plan as JSON")
    add_place_flags(parser, record=True)


def main(args: argparse.Namespace) -> int:
    """Prints the plan; 0, or 2 when no speed is known, after what is known all the same."""
    from coordinator.planning.planned import print_plan

    args.task, args.inputs = split_task(args.inputs)
    backlog_flags.check_backlog(args)
    if args.task == Task.EMBED:
        raise UsageError("there are no plans for embed yet: `fleet run embed INPUT --dry-run` counts its rows")
    if args.price is not None and args.watts is None:
        raise UsageError("--price needs --watts: what a Mac draws while it works")
    print_plan(args, tariff(args))
    return int(Exit.OK)


def split_task(words: list[str]) -> tuple[Task, list[str]]:
    """The task, if the first of several words names one, and the inputs."""
    tasks = [task.value for task in Task]
    if words[0] in tasks and len(words) > 1:
        return Task(words[0]), words[1:]
    if len(words) > 1 and not Path(words[0]).exists() and words[0] != "-":
        raise UsageError(f"there is neither a file nor a task {words[0]}{did_you_mean(words[0], tasks)}")
    return Task.GENERATE, words
