"""Benchmark runs summed up."""

import json

import pytest

from worker.trial import Table, Trial, table, text


def trial(batch: int, total_tps: float, **changes: float) -> Trial:
    return Trial(
        **{"batch": batch, "total_tps": total_tps, "prompt_tps": 100.0, "seconds": 2.0, "peak_bytes": 10**9} | changes
    )


def made(*trials: Trial, ended: str = "") -> Table:
    return table("short", trials, prompt_tokens=16, output_tokens=100, ended=ended)


def test_each_figure_is_the_median_of_its_runs() -> None:
    found = made(trial(2, 30, seconds=1), trial(2, 10, seconds=5), trial(2, 20, seconds=9, peak_bytes=3 * 10**9))
    (line,) = found.lines
    assert (line.total_tps, line.row_tps, line.seconds, line.runs) == (20, 10, 5, 3)
    assert line.peak_bytes == 3 * 10**9, "of memory the most counts"
    assert line.spread == 1.0


def test_speedup_is_over_the_smallest_batch() -> None:
    found = made(trial(4, 80), trial(2, 40), trial(8, 100))
    assert [(line.batch, line.speedup) for line in found.lines] == [(2, 1.0), (4, 2.0), (8, 2.5)]


def test_the_knee_is_the_smallest_batch_near_the_best() -> None:
    assert made(trial(1, 10), trial(8, 96), trial(16, 100), trial(32, 90)).knee == 8


def test_the_text_marks_the_knee_and_only_it() -> None:
    lines = text(made(trial(1, 10), trial(8, 1234.5), trial(16, 1240))).splitlines()
    assert lines[0] == "short: 100 new tokens after 16 of prompt"
    assert [line for line in lines if "knee" in line] == [lines[3]]
    assert lines[3].split() == ["8", "1,234.5", "154.3", "100", "123.45x", "2.00", "1.00", "-", "<-", "knee"]


def test_the_columns_stand_under_their_names() -> None:
    lines = text(made(trial(1, 10), trial(128, 99999.9))).splitlines()
    assert len({len(line.removesuffix("  <- knee")) for line in lines[1:]}) == 1


def test_runs_far_apart_are_told() -> None:
    restless = text(made(trial(1, 10), trial(1, 12), trial(2, 20), trial(2, 20.1)))
    assert "runs at batch 1 differ by over 10%" in restless
    assert "differ" not in text(made(trial(1, 10), trial(1, 10.5)))


def test_why_the_table_ends_is_told() -> None:
    assert "batch 64 is left out" in text(made(trial(1, 10), ended="batch 64 is left out: 40 rows fit"))


def test_a_table_comes_back_from_json_as_it_was() -> None:
    before = made(trial(1, 10), trial(1, 11), trial(2, 20))
    assert Table.from_dict(json.loads(json.dumps(before.as_dict()))) == before


def test_a_table_of_another_make_is_not_guessed_at() -> None:
    with pytest.raises(TypeError):
        Table.from_dict({**made(trial(1, 10)).as_dict(), "more": 1})
