"""The flags that say how a backlog becomes rows, shared by every command that takes one."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from coordinator.intake.options import IntakeOptions
from coordinator.intake.vector_options import DTYPES, LONG
from fleet.errors import UsageError
from fleet.flags import integer, one_of, place, positive
from fleet.job import Task


def add_backlog(parser: argparse.ArgumentParser) -> None:
    """TASK, INPUT and the model."""
    tasks = [task.value for task in Task]
    parser.add_argument("task", type=one_of(tasks), metavar="TASK", help="what to do with each row")
    parser.add_argument("inputs", type=place, nargs="+", metavar="INPUT", help="the backlog")
    parser.add_argument("-m", "--model", type=place, required=True, help="model folder or hub id")


def add_answer_flags(parser: argparse.ArgumentParser) -> None:
    """What the answers are like."""
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
    _add_vector_flags(parser)


def _add_vector_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("vectors (embed)")
    group.add_argument(
        "--long",
        type=one_of(LONG),
        metavar="HOW",
        help="a text over the model's max_seq_length: error, truncate, or chunk, a vector for each of several "
        "overlapping pieces (chunk; error in OpenAI batch lines)",
    )
    group.add_argument("--dtype", type=one_of(DTYPES), default="float32", metavar="TYPE", help="float32 or float16")
    group.add_argument(
        "--dimensions",
        type=positive,
        default=0,
        metavar="N",
        help="shorter vectors, where the model was trained for it",
    )
    group.add_argument("--prompt", metavar="NAME", help="which of the model's prompts to put before each text")


def add_input_flags(parser: argparse.ArgumentParser) -> None:
    """How the input is read."""
    group = parser.add_argument_group("input")
    group.add_argument("--id-field", metavar="NAME", help="field or column that names a row (custom_id or id)")
    group.add_argument("--text-field", metavar="NAME", help="field or column that holds the text (text or prompt)")
    group.add_argument("--limit", type=positive, metavar="N", help="only the first N rows")


def check_backlog(args: argparse.Namespace) -> None:
    """Raises UsageError for flags that do not go together."""
    if (args.task == Task.CLASSIFY) != bool(args.labels):
        raise UsageError("classify needs --labels a,b,c" if not args.labels else "--labels goes with classify only")
    if args.no_split and args.task != Task.SUMMARIZE:
        raise UsageError("--no-split goes with summarize only")


def intake_options(args: argparse.Namespace) -> IntakeOptions:
    """What the flags say."""
    return IntakeOptions(
        task=Task(args.task),
        model=args.model,
        max_tokens=args.max_tokens,
        temperature=args.temperature,
        top_p=args.top_p,
        seed=args.seed,
        stop=tuple(args.stop),
        system=args.system,
        prompt_template=args.prompt_template,
        id_field=args.id_field,
        text_field=args.text_field,
        limit=args.limit,
        labels=tuple(args.labels),
        split=not args.no_split,
        think=args.think,
        long=args.long or "",
        dtype=args.dtype,
        dimensions=args.dimensions,
        prompt_name=args.prompt,
    )


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
