"""Throughput against the measured figure."""

import pytest

from worker.pace import Pace


def after(pace: Pace, *windows: tuple[float, float]) -> Pace:
    """The pace after (ratio, seconds) in windows of 5 s."""
    for ratio, seconds in windows:
        for _ in range(int(seconds / 5)):
            pace.observe(ratio, 5)
    return pace


def test_the_first_windows_set_the_pace_of_a_bucket_that_was_only_measured() -> None:
    pace = after(Pace(1.0), (0.8, 10))
    assert pace.now == pytest.approx(0.8)
    assert pace.usual == pytest.approx(0.8)
    assert not pace.throttled


def test_a_machine_much_slower_than_itself_for_a_minute_is_throttled_and_its_figure_stays() -> None:
    pace = after(Pace(1.0), (0.9, 1200), (0.4, 60))
    assert not pace.throttled, "a minute of it has not shown for a minute yet"
    after(pace, (0.4, 60))
    assert pace.throttled
    assert pace.usual > 0.75, "the figure is not corrected by what may pass"


def test_a_short_hiccup_is_no_throttling() -> None:
    assert not after(Pace(1.0), (1.0, 600), (0.1, 20), (1.0, 60)).throttled


def test_a_machine_that_recovers_is_no_longer_throttled() -> None:
    assert not after(Pace(1.0), (1.0, 1200), (0.4, 120), (1.0, 60)).throttled


def test_a_shift_that_stays_becomes_the_figure() -> None:
    pace = after(Pace(1.0), (1.0, 1200), (0.6, 3600))
    assert pace.usual == pytest.approx(0.6, rel=0.02)
    assert not pace.throttled


def test_a_slow_drift_is_followed_without_an_alarm() -> None:
    pace = after(Pace(1.0), (1.0, 600))
    for step in range(40):
        after(pace, (1.0 - step / 100, 60))
        assert not pace.throttled
    assert pace.usual < 0.8
