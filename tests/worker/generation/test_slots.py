"""Each kind of cache has its counterpart in a batch; what has none runs alone, and the reason names it."""

from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models.cache import ArraysCache, CacheList, ChunkedKVCache, KVCache, QuantizedKVCache, RotatingKVCache

from worker.generation.positions import Positions
from worker.generation.slots import STEP_COLUMNS, ArraySlots, KVSlots, ListSlots, slots_for, why_single

pytestmark = pytest.mark.mlx


def keys(rows: int, tokens: int, value: float) -> tuple[mx.array, mx.array]:
    return mx.full((rows, 2, tokens, 4), value), mx.full((rows, 2, tokens, 3), -value)


def test_every_cache_that_batches_has_its_counterpart() -> None:
    found = slots_for(CacheList(KVCache(), RotatingKVCache(max_size=8), ArraysCache(2)), Positions())
    assert isinstance(found, ListSlots)
    assert [type(part) for part in found.caches] == [KVSlots, KVSlots, ArraySlots]


@pytest.mark.parametrize("cache", [ChunkedKVCache(8), QuantizedKVCache(), RotatingKVCache(max_size=8, keep=4)])
def test_a_model_with_another_cache_runs_alone_and_says_which(cache: Any) -> None:
    assert type(cache).__name__ in why_single([KVCache(), CacheList(KVCache(), cache)])
    assert why_single([KVCache(), ArraysCache(1)]) == ""


def test_placed_and_moved_rows_are_read_where_they_are() -> None:
    positions = Positions()
    slots = KVSlots(positions)
    slots.room(4, 100)
    for slot, (tokens, value) in enumerate([(3, 1.0), (5, 2.0), (3, 3.0)]):
        slots.place(slot, keys(1, tokens, value))
    slots.move([2], [0])
    positions.set([3, 5])
    read, values = slots.update_and_fetch(*keys(2, 1, 9.0))
    assert read.shape == (2, 2, 6, 4)
    assert read[0, 0, :4, 0].tolist() == [3, 3, 3, 9]
    assert read[1, 1, :, 3].tolist() == [2, 2, 2, 2, 2, 9]
    assert values[1, 1, :, 2].tolist() == [-2, -2, -2, -2, -2, -9]


def test_room_is_what_was_asked_for_in_whole_steps() -> None:
    slots = KVSlots(Positions())
    slots.room(3, STEP_COLUMNS + 1)
    slots.place(0, keys(1, 5, 1.0))
    assert slots.keys.shape == (3, 2, 2 * STEP_COLUMNS, 4)
    slots.room(2, 5)
    assert slots.values.shape == (2, 2, STEP_COLUMNS, 3)
    assert slots.keys[0, 0, :6, 0].tolist() == [1, 1, 1, 1, 1, 0]


def test_a_ring_takes_no_more_room_than_its_window() -> None:
    slots = KVSlots(Positions(), window=8)
    slots.room(2, 500)
    slots.place(1, keys(1, 8, 1.0))
    assert slots.keys.shape == (2, 2, 8, 4)


def test_recurrent_state_starts_at_zeros_where_a_row_has_none() -> None:
    slots = ArraySlots(2)
    slots.count(1)
    slots.place(0, [None, mx.full((1, 3), 5.0)])
    slots.count(2)
    slots.place(1, [mx.full((1, 2), 7.0), None])
    assert [array.tolist() for array in slots.arrays] == [[[0, 0], [7, 7]], [[5, 5, 5], [0, 0, 0]]]
    slots.move([1], [0])
    slots.count(1)
    assert [array.tolist() for array in slots.arrays] == [[[7, 7]], [[0, 0, 0]]]


def test_a_decode_cache_takes_one_token_a_slot() -> None:
    with pytest.raises(ValueError, match="one token a slot"):
        KVSlots(Positions()).make_mask(2)
