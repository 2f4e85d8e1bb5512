"""How many rows decode together, by length, and what is measured when."""

import json
from pathlib import Path

import pytest

from worker.caps import WINDOW_S, WORTH_ROWS, WORTH_S, Bounds, Caps, first_guess, promised
from worker.knee import Curve, Prefill, PrefillSample, Sample, interpolated

START, MOST = Prefill(rows=1, tokens=128), Prefill(rows=4, tokens=512)
SHORT, LONG = 256, 2048


def curve(bucket: int, *tps: float, ended: bool = True) -> Curve:
    samples = tuple(Sample(rows=rows, tps=value) for rows, value in zip((1, 2, 4, 8, 12, 16), tps, strict=False))
    return Curve(bucket_tokens=bucket, samples=samples, ended=ended, prefill_ended=ended)


def caps(*curves: Curve, fixed: int = 0, total_tokens: int = 1 << 20) -> Caps:
    return Caps(
        bounds=Bounds(start=START, most=MOST, total_tokens=total_tokens),
        provisional=8,
        fixed=fixed,
        curves={curve.bucket_tokens: curve for curve in curves},
    )


def measure(it: Caps, bucket: int, rate: dict[int, float], free_rows: int = 1000) -> list[int]:
    """Takes every decode sample that is asked for; the batches."""
    taken = []
    while (rows := it.next_rows(bucket, free_rows)) is not None:
        it.sampled(bucket, Sample(rows=rows, tps=rate[rows]))
        taken.append(rows)
    return taken


def measure_prefill(it: Caps, bucket: int) -> None:
    while (setting := it.next_setting(bucket)) is not None:
        it.sampled_prefill(bucket, PrefillSample(setting=setting, tps=setting.tokens))


FLAT_FROM_4 = {1: 10, 2: 20, 4: 40, 8: 40, 12: 40, 16: 40}


def test_short_rows_go_wide_and_long_ones_narrow() -> None:
    it = caps(curve(SHORT, 1, 2, 4, 8, 12, 16), curve(LONG, 1, 2, 2, 2, 2, 2))
    assert it.own(SHORT) == 16
    assert it.own(LONG) == 2
    assert it.own(1024) == 8, "what is not measured runs at the provisional cap"


def test_a_sweep_under_way_only_raises_the_provisional_cap() -> None:
    assert caps(curve(SHORT, 10, 10, ended=False)).own(SHORT) == 8
    assert caps(curve(SHORT, 1, 2, 4, 8, 12, ended=False)).own(SHORT) == 12


def test_the_cap_asked_for_is_never_passed_and_never_raises_ours() -> None:
    it = caps(curve(SHORT, 1, 2, 4, 8, 12, 16))
    it.asked = 3
    assert it.in_force(SHORT) == 3
    it.asked = 99
    assert it.in_force(SHORT) == 16
    it.asked = 0
    assert it.in_force(SHORT) == 16


def test_a_given_cap_holds_for_all_lengths_and_nothing_is_measured() -> None:
    it = caps(curve(SHORT, 1, 2, 4, 8, 12, 16), fixed=5)
    it.prefilled(LONG, 10 * WORTH_S)
    assert it.own(SHORT) == it.own(LONG) == 5
    assert not it.due(LONG, 10 * WORTH_ROWS)


def test_a_bucket_with_many_rows_waiting_is_measured_at_once() -> None:
    assert caps().due(SHORT, WORTH_ROWS)
    assert not caps().due(SHORT, WORTH_ROWS - 1)


def test_a_bucket_is_measured_after_a_minute_of_its_own_work() -> None:
    it = caps()
    it.prefilled(SHORT, WORTH_S / 2)
    it.stepped(SHORT, 8, WORTH_S / 2)
    assert it.due(SHORT, 8)
    assert not it.due(LONG, 8)


def test_the_last_rows_of_a_backlog_are_not_measured_for() -> None:
    it = caps()
    it.prefilled(SHORT, 100 * WORTH_S)
    assert not it.due(SHORT, 3)


def test_a_turn_that_did_not_end_is_taken_up_after_as_much_work_again() -> None:
    it = caps()
    it.begin(SHORT)
    it.prefilled(SHORT, WORTH_S)
    assert not it.due(SHORT, WORTH_ROWS)
    it.prefilled(SHORT, WORTH_S)
    assert it.due(SHORT, WORTH_ROWS)


def test_a_measured_bucket_is_left_alone() -> None:
    it = caps()
    assert measure(it, SHORT, FLAT_FROM_4) == [1, 2, 4, 8, 12, 16]
    assert it.own(SHORT) == 4
    measure_prefill(it, SHORT)
    assert it.prefill(SHORT) == Prefill(rows=1, tokens=512)
    assert it.prefill(LONG) == START
    it.prefilled(SHORT, 100 * WORTH_S)
    assert not it.due(SHORT, WORTH_ROWS)


def test_prompts_are_measured_after_decoding() -> None:
    it = caps()
    assert it.next_setting(SHORT) is None
    measure(it, SHORT, FLAT_FROM_4)
    assert it.next_setting(SHORT) == START


def test_a_sweep_without_room_beside_the_batch_goes_on_when_there_is_some() -> None:
    it = caps()
    assert measure(it, SHORT, {1: 10, 2: 20, 3: 30}, free_rows=3) == [1, 2, 3]
    assert not it.curves[SHORT].ended
    assert it.own(SHORT) == 8
    assert it.next_rows(SHORT, 1000) == 4


def test_a_sweep_that_all_memory_could_not_carry_further_is_over() -> None:
    it = caps(total_tokens=4 * SHORT)
    assert measure(it, SHORT, {1: 1, 2: 2, 4: 4}, free_rows=4) == [1, 2, 4]
    assert it.curves[SHORT].ended
    assert it.own(SHORT) == 4


def test_a_sample_that_found_no_memory_ends_the_sweep() -> None:
    it = caps()
    it.sampled(SHORT, Sample(rows=1, tps=1))
    it.sampled(SHORT, Sample(rows=2, tps=2))
    it.ran_out(SHORT)
    assert it.own(SHORT) == 2
    assert it.next_rows(SHORT, 1000) is None
    it.ran_out(SHORT)
    assert it.next_setting(SHORT) is None


def test_a_shortage_halves_the_batch_for_rows_as_long_and_longer() -> None:
    it = caps(curve(SHORT, 1, 2, 4, 8, 12, 16), curve(LONG, 1, 2, 4, 8, 12, 16))
    it.halve(LONG, 12)
    assert it.own(LONG) == it.own(2 * LONG) == 6
    assert it.own(SHORT) == 16
    for _ in range(5):
        it.halve(LONG, 99)
    assert it.own(LONG) == 1


def steady(it: Caps, bucket: int, rows: int, tps: float, seconds: float) -> None:
    for _ in range(int(seconds * tps / rows)):
        it.stepped(bucket, rows, rows / tps)


def test_steady_windows_correct_the_figure_and_never_the_knee() -> None:
    it = caps(curve(SHORT, 10, 20, 40, 80, 120, 160))
    steady(it, SHORT, 16, 120, 300)
    assert it.curves[SHORT].scale == pytest.approx(0.75, rel=0.06)
    assert it.pace(SHORT) == pytest.approx(0.75, rel=0.02)
    assert it.own(SHORT) == 16
    assert it.take_unsaved() == {SHORT: it.curves[SHORT]}
    assert it.take_unsaved() == {}


def test_a_batch_that_is_not_full_says_nothing() -> None:
    it = caps(curve(SHORT, 10, 20, 40, 80, 120, 160))
    steady(it, SHORT, 8, 5, 60)
    for _ in range(100):
        it.stepped(SHORT, 16, 1)
        it.stepped(SHORT, 12, WINDOW_S)
    assert it.curves[SHORT].scale == 1.0
    assert it.take_unsaved() == {}


def test_steps_that_read_less_than_a_sample_say_nothing() -> None:
    it = caps(curve(SHORT, 10, 20, 40, 80, 120, 160))
    for _ in range(1000):
        it.stepped(SHORT, 16, 0.05, measurable=False)
    assert it.pace(SHORT) == 1.0
    assert it.take_unsaved() == {}


def test_a_machine_that_slows_down_is_throttled_with_the_same_knee() -> None:
    it = caps(curve(SHORT, 10, 20, 40, 80, 120, 160))
    steady(it, SHORT, 16, 150, 900)
    assert not it.throttled(SHORT)
    steady(it, SHORT, 16, 50, 130)
    assert it.throttled(SHORT)
    assert it.own(SHORT) == 16


def test_the_shortest_measured_bucket_is_the_first_guess() -> None:
    known = {LONG: curve(LONG, 1, 1), SHORT: curve(SHORT, 1, 2, 4), 512: curve(512, 1, 9, ended=False)}
    assert first_guess(known) == 4
    assert first_guess({512: known[512]}) == 0


@pytest.mark.parametrize(
    "table",
    json.loads((Path(__file__).parent.parent / "curves.json").read_text())["curves"],
    ids=lambda table: table["name"],
)
def test_every_published_machine_ends_up_at_a_batch_within_5_percent_of_its_best(table: dict) -> None:
    points = [Sample(rows=rows, tps=tps) for rows, tps in zip(table["batch"], table["tok_s"], strict=True)]
    it = caps()
    while (rows := it.next_rows(SHORT, 1000)) is not None:
        it.sampled(SHORT, Sample(rows=rows, tps=interpolated(points, rows) or points[-1].tps))
    found = interpolated(points, it.own(SHORT))
    assert found is not None
    assert found >= 0.95 * max(table["tok_s"])


def test_speeds_measured_before_are_promised_where_a_curve_tells() -> None:
    knee = Curve(
        bucket_tokens=512,
        samples=(Sample(rows=4, tps=100.0), Sample(rows=8, tps=160.0)),
        prefill=(PrefillSample(setting=Prefill(rows=1, tokens=128), tps=900.0),),
        scale=0.5,
    )
    known = {1024: knee, 256: Curve(bucket_tokens=256)}
    assert promised(known, 6) == (65.0, 900.0)
    assert promised(known, 16) == (0.0, 900.0)
    assert promised({}, 8) == (0.0, 0.0)
