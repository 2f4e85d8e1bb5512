"""The flags of `fleet run` that no other test needs."""

import argparse
from pathlib import Path

import pytest

from coordinator.backlog_flags import intake_options
from coordinator.commands import run
from fleet.cli import main
from fleet.errors import UsageError
from fleet.flags import FlagParser


def parsed(*flags: str) -> argparse.Namespace:
    parser = FlagParser("fleet run")
    run.add_arguments(parser)
    return parser.parse(["generate", "in.jsonl", "-m", "model", "-o", "out.jsonl", *flags])


@pytest.mark.parametrize(
    ("text", "count"),
    [("1", 1), ("4096", 4096), ("2k", 2048), ("800M", 800 << 20), ("12G", 12 << 30), ("1.5g", 3 << 29)],
)
def test_memory_is_given_in_bytes_or_with_a_unit(text: str, count: int) -> None:
    assert parsed("--memory", text).memory == count


def test_unless_given_memory_is_for_the_engine_to_find_out() -> None:
    assert parsed().memory == 0


@pytest.mark.parametrize("text", ["", "G", "0", "-1G", "many", "12GB", "nan", "infG", "1e400"])
def test_what_is_no_size_is_a_usage_error(text: str) -> None:
    with pytest.raises(UsageError, match="--memory: expected a size like 12G"):
        parsed(f"--memory={text}")


@pytest.mark.parametrize("task", ["generate", "classify"])
def test_no_split_goes_with_summarize_only(task: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    labels = ["--labels", "a,b"] if task == "classify" else []
    assert main(["run", task, "in.jsonl", "-m", "model", "-o", str(tmp_path / "o"), "--no-split", *labels]) == 2
    assert capsys.readouterr().err == "fleet: --no-split goes with summarize only\n"


def test_a_misspelt_task_is_told_with_the_one_that_was_meant(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "summarise", "in.jsonl", "-m", "model", "-o", "out.jsonl"]) == 2
    assert "expected generate or summarize or classify or embed, did you mean summarize?" in capsys.readouterr().err


def test_the_flags_of_embed_reach_the_options() -> None:
    flags = ["--long", "truncate", "--dtype", "float16", "--dimensions", "64", "--prompt", "query"]
    options = intake_options(parsed(*flags))
    assert (options.long, options.dtype, options.dimensions, options.prompt_name) == (
        "truncate",
        "float16",
        64,
        "query",
    )
    usual = intake_options(parsed())
    assert (usual.long, usual.dtype, usual.dimensions, usual.prompt_name) == ("", "float32", 0, None)


@pytest.mark.parametrize("flag", ["--long=cut", "--dtype=int8", "--dimensions=0"])
def test_a_flag_of_embed_that_is_no_choice_is_a_usage_error(flag: str) -> None:
    with pytest.raises(UsageError, match=f"{flag.partition('=')[0]}: "):
        parsed(flag)
