"""From samples to the knee, and the sweep that takes them."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from worker.knee import (
    MOST_ROWS,
    Curve,
    Prefill,
    PrefillSample,
    Sample,
    best_setting,
    bucket_of,
    interpolated,
    knee,
    next_rows,
    next_setting,
    next_size,
)

CURVES = json.loads((Path(__file__).parent.parent / "curves.json").read_text())["curves"]
#: read off the published tables: the smallest batch with 95 % of the best
PUBLISHED = {
    "m3-ultra-9b-4bit": 32,
    "gpt-oss-20b-short": 16,
    "gpt-oss-20b-long": 8,
    "m5-max-14b-4bit": 32,
    "h200-8b-bf16": 128,
    "h200-8b-4bit": 32,
    "linux-2core-135m-f32": 64,
}


def samples(**tps: float) -> list[Sample]:
    return [Sample(rows=int(name[1:]), tps=value) for name, value in tps.items()]


def swept(rate: Callable[[int], float], most_rows: int = MOST_ROWS) -> list[Sample]:
    """A whole sweep over `rate`."""
    taken: list[Sample] = []
    while (rows := next_rows(taken, most_rows=most_rows)) is not None:
        taken.append(Sample(rows=rows, tps=rate(rows)))
        assert len(taken) < 40
    return taken


def published(curve: dict) -> list[Sample]:
    return [Sample(rows=rows, tps=tps) for rows, tps in zip(curve["batch"], curve["tok_s"], strict=True)]


@pytest.mark.parametrize("curve", CURVES, ids=lambda curve: curve["name"])
def test_the_knee_of_a_published_table_is_its_smallest_batch_with_95_percent_of_the_best(curve: dict) -> None:
    assert knee(published(curve)).rows == PUBLISHED[curve["name"]]


@pytest.mark.parametrize("curve", CURVES, ids=lambda curve: curve["name"])
def test_a_sweep_over_a_published_curve_finds_a_batch_as_good_as_its_knee(curve: dict) -> None:
    table = published(curve)
    last = table[-1]

    def rate(rows: int) -> float:
        return interpolated(table, rows) or last.tps  # beyond the table nothing more is gained

    found = swept(rate)
    assert knee(found).tps >= 0.95 * max(sample.tps for sample in table)
    assert knee(found).rows <= PUBLISHED[curve["name"]]
    assert found[-1].rows <= 2 * last.rows


def test_the_sizes_double_and_from_8_on_have_one_between() -> None:
    sizes = [1]
    while sizes[-1] < 128:
        sizes.append(next_size(sizes[-1]))
    assert sizes == [1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128]
    assert next_size(20) == 24


def test_a_dip_does_not_end_the_sweep() -> None:
    table = {1: 10, 2: 19, 4: 35, 8: 60, 12: 50, 16: 80, 24: 70, 32: 120, 48: 100, 64: 110}
    found = swept(lambda rows: table[rows])
    assert [sample.rows for sample in found] == list(table)
    assert knee(found).rows == 32


def test_a_staircase_is_climbed_to_its_best_step() -> None:
    def rate(rows: int) -> float:
        return rows / -(-rows // 32)  # up to 32 rows cost the same, the 33rd doubles it

    found = swept(rate)
    assert knee(found).rows == 32
    assert found[-1].rows == 64


def test_a_bad_start_does_not_end_the_sweep() -> None:
    table = {1: 10, 2: 9, 4: 9, 8: 30, 12: 40, 16: 50}
    assert knee(swept(lambda rows: table.get(rows, 50))).rows == 16


def test_the_sweep_ends_once_twice_the_best_batch_gained_nothing() -> None:
    assert swept(lambda rows: min(rows, 16))[-1].rows == 32
    assert swept(lambda _: 5.0)[-1].rows == 16


def test_creeping_gains_are_none() -> None:
    assert swept(lambda rows: 100 + rows / 100)[-1].rows == 16


def test_memory_ends_the_sweep_and_the_last_batch_that_fits_is_sampled() -> None:
    assert [sample.rows for sample in swept(float, most_rows=20)] == [1, 2, 4, 8, 12, 16, 20]
    assert [sample.rows for sample in swept(float, most_rows=1)] == [1]
    assert [sample.rows for sample in swept(float, most_rows=0)] == [1]


def test_a_sweep_that_memory_ended_goes_on_when_there_is_more() -> None:
    taken = swept(float, most_rows=20)
    assert next_rows(taken, most_rows=20) is None
    assert next_rows(taken, most_rows=100) == 24


def test_no_sweep_goes_beyond_what_a_host_can_feed() -> None:
    assert swept(float)[-1].rows == MOST_ROWS


@pytest.mark.parametrize(
    ("tokens", "bucket"), [(1, 256), (256, 256), (257, 512), (1024, 1024), (1025, 2048), (5000, 8192)]
)
def test_buckets_double(tokens: int, bucket: int) -> None:
    assert bucket_of(tokens) == bucket


def test_a_curve_expects_between_its_samples_what_lies_between_and_nothing_outside() -> None:
    curve = Curve(bucket_tokens=256, samples=tuple(samples(r1=10, r4=40)), scale=0.5)
    assert curve.expected_tps(1) == 5
    assert curve.expected_tps(2.5) == 12.5
    assert curve.expected_tps(5) is None
    assert Curve(bucket_tokens=256).expected_tps(1) is None
    assert Curve(bucket_tokens=256).knee is None


def prefill_swept(rate: Callable[[Prefill], float], start: Prefill, most: Prefill) -> list[PrefillSample]:
    taken: list[PrefillSample] = []
    while (setting := next_setting(taken, start=start, most=most)) is not None:
        taken.append(PrefillSample(setting=setting, tps=rate(setting)))
        assert len(taken) < 40
    return taken


def test_the_prefill_setting_climbs_to_the_best_neighbour() -> None:
    def rate(setting: Prefill) -> float:
        return 1000 - abs(setting.tokens - 512) - 100 * abs(setting.rows - 2)

    taken = prefill_swept(rate, Prefill(rows=1, tokens=128), Prefill(rows=8, tokens=2048))
    assert best_setting(taken) == Prefill(rows=2, tokens=512)
    assert len({sample.setting for sample in taken}) == len(taken)


def test_the_prefill_setting_stays_within_its_bounds_and_is_not_moved_by_noise() -> None:
    start, most = Prefill(rows=8, tokens=2048), Prefill(rows=8, tokens=2048)
    taken = prefill_swept(lambda setting: 1010.0 if setting != start else 1000.0, start, most)
    assert best_setting(taken) == start
    assert all(sample.setting.rows <= 8 and sample.setting.tokens <= 2048 for sample in taken)
