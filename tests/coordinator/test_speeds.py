"""Speeds come from full windows of the last minute; what is not the machine's doing teaches nothing."""

from __future__ import annotations

import pytest

from coordinator.scheduling.speeds import FIRST_DECODE_TPS, THROTTLED_S, Speed
from fleet.messages import Figures
from tests.steady_engine import CAP, SteadyEngine


def test_nothing_is_known_before_a_full_window() -> None:
    assert Speed().decode_tps == FIRST_DECODE_TPS
    assert SteadyEngine().work(60, rows=CAP // 2).speed.reports == 0


def test_a_full_batch_tells_both_speeds() -> None:
    speed = SteadyEngine().work(30).speed
    assert speed.decode_tps == pytest.approx(80, rel=0.02)
    assert speed.prefill_tps == pytest.approx(800, rel=0.02)


def test_a_batch_is_full_when_memory_lets_no_more_rows_in() -> None:
    """A cap that the rows' KV never lets be reached would leave the speed unknown for ever."""
    assert SteadyEngine().work(30, rows=CAP // 2, waits=True).speed.decode_tps == pytest.approx(40, rel=0.05)


def test_the_last_rows_of_a_draining_batch_teach_no_speed_but_that_of_a_row_alone() -> None:
    engine = SteadyEngine().work(60)
    before = engine.speed.decode_tps
    engine.work(30, tps=320, rows=1)
    assert engine.speed.decode_tps == before
    assert engine.speed.solo_tps == pytest.approx(40, rel=0.05)


def test_a_batch_that_is_never_full_shows_at_least_how_fast_it_is() -> None:
    """A machine 40 times as fast as was taken for granted was sent a batch for 20 s, which it had done in one: its
    batch was never full, and so it was sent as little to the end."""
    speed = SteadyEngine().work(12, tps=8000, rows=CAP // 2).speed
    assert speed.reports == 0
    assert speed.decode_tps == pytest.approx(4000, rel=0.05)
    assert speed.prefill_tps == pytest.approx(80_000, rel=0.05)


def test_measuring_the_knee_is_no_slowness() -> None:
    engine = SteadyEngine().work(60)
    before = engine.speed.decode_tps
    assert engine.work(30, tps=10, steady=False).speed.decode_tps == before


def test_time_between_steps_counts() -> None:
    """A process that is kept from working a third of the time is a third slower, whatever its own clock says."""
    assert SteadyEngine().work(60, idle_s=1.5).speed.decode_tps == pytest.approx(80 * 3 / 4.5, rel=0.02)


def test_a_beat_that_is_read_again_before_the_next_changes_nothing() -> None:
    """A lease is looked at every second and renewed every three: time between steps was not seen to pass."""
    engine = SteadyEngine()
    engine.read_again = 2
    assert engine.work(60, idle_s=1.5).speed.decode_tps == pytest.approx(80 * 3 / 4.5, rel=0.02)
    assert engine.speed.reports <= 20


def test_beats_that_are_read_early_or_late_do_not_make_an_engine_slow() -> None:
    """Windows by turns a third too long and too short gave nine tenths of the speed."""
    speed, counted = Speed(), Figures()
    for beat in range(1, 41):
        steps = 30 * beat
        counted = Figures(
            steps=steps, step_rows=8 * steps, step_cap=8 * steps, output_tokens=8 * steps, decode_s=3.0 * beat
        )
        speed.report(counted, 3.0 * beat + beat % 2)
    assert speed.decode_tps == pytest.approx(80, rel=0.02)


def test_a_speed_follows_within_a_minute_or_two_and_a_slump_is_told() -> None:
    engine = SteadyEngine().work(600)
    assert not engine.speed.throttled
    engine.work(60, tps=20)
    assert engine.speed.decode_tps < 50
    engine.work(THROTTLED_S, tps=20)
    assert engine.speed.throttled
    assert engine.speed.pace < 0.75
    engine.work(300)
    assert not engine.speed.throttled


def test_a_new_engine_of_the_same_worker_does_not_count_backwards() -> None:
    engine = SteadyEngine().work(30)
    before = engine.speed.decode_tps
    engine.counted = dict.fromkeys(engine.counted, 0.0)
    engine.work(30)
    assert engine.speed.decode_tps == pytest.approx(before, rel=0.05)


def test_an_encoder_has_a_speed_without_steps() -> None:
    speed = Speed()
    for beat in range(5):
        speed.report(Figures(prompt_tokens=30_000 * beat, prefill_s=1.5 * beat), 3.0 * beat)
    assert speed.prefill_tps == pytest.approx(20_000)


def test_a_speed_measured_before_counts_until_there_is_better() -> None:
    engine = SteadyEngine()
    engine.speed = Speed(500.0, 5000.0)
    assert (engine.speed.decode_tps, engine.speed.prefill_tps) == (500.0, 5000.0)
    assert engine.work(30).speed.decode_tps == pytest.approx(80, rel=0.02)
