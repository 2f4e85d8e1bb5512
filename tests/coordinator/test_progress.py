"""Progress: a bar on a terminal, lines elsewhere, nothing when quiet."""

import io
from dataclasses import replace

import pytest

from coordinator.control.run_view import RunView
from coordinator.records import Counts
from coordinator.screens.progress import LINE_S, Bar, Lines, Progress, duration, figures


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


class Clock:
    """Seconds that pass when told."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def view(
    done: int = 3,
    *,
    failed: int = 0,
    tps: float = 250.0,
    ended: bool = True,
    state: str = "working",
    computed: int = 0,
) -> RunView:
    counts = Counts(requests=10, done=done, error=failed)
    return RunView(
        counts=counts, intake_ended=ended, output_tps=tps, prompt_tps=900.0, computed=computed, left_s=65.0, state=state
    )


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (view(), ["3/10 requests", "250 tok/s", "about 1:05 left"]),
        (view(failed=2), ["3/10 requests", "2 failed", "250 tok/s", "about 1:05 left"]),
        (view(8, failed=2), ["8/10 requests", "2 failed", "250 tok/s"]),
        (view(failed=2, computed=5), ["3/10 requests", "2 failed", "250 tok/s", "about 1:05 left"]),
        (replace(view(9), left_s=0.4), ["9/10 requests", "250 tok/s"]),
        (view(ended=False, tps=0.0), ["3/10+ requests", "reading 900 tok/s"]),
        (view(0, computed=7), ["0/10 requests", "7 rows", "250 tok/s", "about 1:05 left"]),
        (view(10), ["10/10 requests", "250 tok/s"]),
        (replace(view(tps=0.0), embeds=True), ["3/10 requests", "900 tok/s", "about 1:05 left"]),
    ],
)
def test_figures_are_those_worth_saying(given: RunView, expected: list[str]) -> None:
    assert figures(given) == expected


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(-1, "0:00"), (0.4, "0:00"), (65, "1:05"), (7380, "2:03:00"), (4 * 86400 + 3600 * 5, "4 d 5 h")],
)
def test_durations_read_as_people_write_them(seconds: float, expected: str) -> None:
    assert duration(seconds) == expected


def test_lines_come_every_few_seconds_and_when_the_state_changes() -> None:
    stream, clock = io.StringIO(), Clock()
    lines = Lines(stream, clock)
    for done, state, passed_s in [(1, "a", 0.0), (2, "a", 0.5), (3, "b", 0.5), (4, "b", 0.5), (5, "b", LINE_S)]:
        clock.now_s += passed_s
        lines.show(view(done, state=state))
    lines.close()
    assert [line.split(" requests")[0] for line in stream.getvalue().splitlines()] == ["a, 1/10", "b, 3/10", "b, 5/10"]


def test_the_last_view_is_never_lost() -> None:
    stream = io.StringIO()
    lines = Lines(stream, Clock())
    lines.show(view(1))
    lines.show(view(10))
    lines.close()
    assert stream.getvalue().splitlines()[-1] == "working, 10/10 requests, 250 tok/s"


def test_a_terminal_gets_one_line_that_is_drawn_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    stream = Terminal()
    with Progress(quiet=False, stream=stream) as progress:
        assert isinstance(progress.drawing, Bar)
        progress.show(view(state="loading model"))
        progress.show(view(10))
    text = stream.getvalue()
    assert "loading model" in text
    assert "10/10 requests, 250 tok/s" in text
    assert text.count("\n") <= 2


def test_a_file_gets_lines() -> None:
    stream = io.StringIO()
    with Progress(quiet=False, stream=stream) as progress:
        assert isinstance(progress.drawing, Lines)
        progress.show(view())
        progress.show(view(4))
    assert [line.split(" requests")[0] for line in stream.getvalue().splitlines()] == ["working, 3/10", "working, 4/10"]


def test_quiet_shows_nothing() -> None:
    stream = Terminal()
    with Progress(quiet=True, stream=stream) as progress:
        progress.show(view())
    assert stream.getvalue() == ""


def test_stderr_is_where_progress_goes(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress(quiet=False) as progress:
        progress.show(view())
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "working, 3/10 requests, 250 tok/s, about 1:05 left\n")
