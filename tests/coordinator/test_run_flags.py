"""The flags of `fleet run` that no other test needs."""

import argparse

import pytest

from coordinator.commands import run


def parsed(*flags: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    run.add_arguments(parser)
    return parser.parse_args(["generate", "in.jsonl", "-m", "model", "-o", "out.jsonl", *flags])


@pytest.mark.parametrize(
    ("text", "count"),
    [("1", 1), ("4096", 4096), ("2k", 2048), ("800M", 800 << 20), ("12G", 12 << 30), ("1.5g", 3 << 29)],
)
def test_memory_is_given_in_bytes_or_with_a_unit(text: str, count: int) -> None:
    assert parsed("--memory", text).memory == count


def test_unless_given_memory_is_for_the_engine_to_find_out() -> None:
    assert parsed().memory == 0


@pytest.mark.parametrize("text", ["", "G", "0", "-1G", "many", "12GB", "nan", "infG", "1e400"])
def test_what_is_no_size_is_a_usage_error(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        parsed(f"--memory={text}")
    assert stop.value.code == 2
    assert "a size like 12G" in capsys.readouterr().err
