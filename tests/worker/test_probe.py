"""The quick choice of a cap."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.models import tiny_llama
from worker.models import load
from worker.probe import best_size, provisional_cap


def rates(*values: float) -> Callable[[int], float]:
    table = dict(zip((1, 2, 4, 8, 16), values, strict=True))
    return lambda size: table[size]


@pytest.mark.parametrize(
    ("values", "best"),
    [
        ((10, 20, 40, 80, 160), 16),
        ((10, 20, 40, 41, 41), 4),
        ((10, 9, 30, 60, 61), 8),
        ((10, 9, 9, 100, 200), 1),
        ((10, 10, 10, 10, 10), 1),
    ],
)
def test_the_cap_is_the_smallest_that_larger_ones_do_not_clearly_beat(values: tuple[float, ...], best: int) -> None:
    assert best_size([1, 2, 4, 8, 16], rates(*values), lambda: 0.0) == best


def test_a_slow_machine_ends_the_look_early() -> None:
    times = iter([0.0, 1.0, 5.0])
    assert best_size([1, 2, 4, 8, 16], rates(1, 2, 4, 8, 16), lambda: next(times)) == 2


def test_a_machine_with_room_for_one_row_is_not_tried_with_more() -> None:
    assert best_size([1], rates(1, 2, 4, 8, 16), lambda: 0.0) == 1


@pytest.mark.mlx
def test_memory_and_the_model_bound_the_cap(tmp_path: Path) -> None:
    loaded = load(str(tiny_llama(tmp_path / "tiny")), "", tmp_path / "hashes")
    row_bytes = 256 * loaded.kv_bytes * 2
    assert provisional_cap(loaded, 1000 * row_bytes) >= 8
    assert provisional_cap(loaded, 5 * row_bytes) == 4
    assert provisional_cap(loaded, 0) == 1
    assert provisional_cap(replace(loaded, single="it cannot batch"), 1000 * row_bytes) == 1
