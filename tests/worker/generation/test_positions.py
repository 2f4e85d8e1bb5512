"""Columns and masks against what each token may see, counted out."""

import random

import mlx.core as mx
import pytest

from worker.generation.positions import Positions

pytestmark = pytest.mark.mlx


def seen_tokens(cached: int, sight: int | None, window: int) -> set[int]:
    """Tokens the new one, number `cached`, may look at."""
    reach = min(sight or cached + 1, window or cached + 1)
    return set(range(max(0, cached + 1 - reach), cached + 1))


def read_tokens(positions: Positions, cached: list[int | None], slot: int, window: int, sight: int | None) -> set[int]:
    """The tokens that the mask lets a slot see, when tokens are written as `columns` says."""
    own = cached[slot]
    assert own is not None
    width = positions.read_width(window)
    held = {token % window if window else token: token for token in range(own + 1)}
    mask = positions.mask(window, sight)
    if mask is None:
        return {held[column] for column in range(width)}
    row = mx.broadcast_to(mask, (len(cached), 1, 1, width))[slot, 0, 0].tolist()
    return {held[column] for column, seen in enumerate(row) if seen}  # type: ignore[arg-type, union-attr]


@pytest.mark.parametrize("window", [0, 8])
@pytest.mark.parametrize("sight", [None, 5, 8, 100])
def test_a_row_sees_its_own_tokens_and_no_further_back_than_it_may(window: int, sight: int | None) -> None:
    draw = random.Random(3)
    for _ in range(40):
        cached: list[int | None] = [draw.choice([draw.randrange(20), draw.randrange(20), None]) for _ in range(5)]
        positions = Positions()
        positions.set(cached)
        for slot, own in enumerate(cached):
            if own is not None:
                assert read_tokens(positions, cached, slot, window, sight) == seen_tokens(own, sight, window), cached


@pytest.mark.parametrize("window", [0, 8])
@pytest.mark.parametrize("sight", [None, 5, 8, 100])
def test_spans_say_the_same_as_the_mask_or_nothing(window: int, sight: int | None) -> None:
    draw = random.Random(4)
    for _ in range(40):
        cached: list[int | None] = [draw.randrange(20) for _ in range(5)]
        positions = Positions()
        positions.set(cached)
        mask = positions.mask(window, sight)
        spans = positions.spans(window, mask)
        assert (spans is None) is (window > 0 and sight == 5 and positions.width > 5)
        if spans is None:
            continue
        columns = mx.arange(positions.read_width(window))
        seen = (columns >= spans[:, :1]) & (columns < spans[:, 1:])
        masked = mx.ones_like(seen) if mask is None else mx.broadcast_to(mask[:, 0, 0], seen.shape)
        assert seen.tolist() == masked.tolist(), cached


def test_a_mask_of_others_has_no_spans() -> None:
    positions = Positions()
    positions.set([6, 3])
    positions.mask(0, None)
    assert positions.spans(0, mx.ones((2, 1, 1, 7), dtype=mx.bool_)) is None
    assert positions.spans(8, positions.mask(0, None)) is None


@pytest.mark.parametrize("cached", [[6, 6, 6], [None, 6], [6]])
def test_equal_rows_need_neither_mask_nor_arrays(cached: list[int | None]) -> None:
    positions = Positions()
    positions.set(cached)
    assert positions.offset == 6
    assert positions.columns(0, (5, 2, 1, 3)) == 6
    assert positions.columns(4, (5, 2, 1, 3)) == 2
    assert positions.mask(0, None) is None
    assert positions.mask(4, 4) is None
    assert positions.read_width(0) == 7
    assert positions.read_width(4) == 4


def test_equal_rows_that_may_not_see_all_get_a_mask() -> None:
    positions = Positions()
    positions.set([6, 6])
    mask = positions.mask(0, 3)
    assert mask is not None
    assert mask.reshape(-1).tolist() == [False] * 4 + [True] * 3


def test_unequal_rows_write_each_its_own_column() -> None:
    positions = Positions()
    positions.set([9, None, 3])
    assert mx.array(positions.columns(0, (3, 1, 1, 2))).reshape(3, 2).tolist() == [[9, 9], [0, 0], [3, 3]]
    assert mx.array(positions.columns(4, (5, 1, 1, 1))).reshape(-1).tolist() == [1, 0, 3, 0, 0]
    assert positions.columns(4, (3, 1, 1, 2)) is positions.columns(4, (3, 1, 1, 2))
