"""A quick look at how decoding speeds up with the batch, for a cap to start with."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import mlx.core as mx

from worker.memory import COPY_FACTOR, KV_STEP_TOKENS
from worker.models import LoadedModel
from worker.solo import prefill

SIZES = (1, 2, 4, 8, 16, 32, 64)
#: Every published curve gains up to here, so the look starts here; a busy machine can make it end here too.
FIRST_SIZE = 8
#: A doubling must gain this much to be worth its memory.
_GAIN = 1.05
#: Sizes without a gain before the look ends: curves have dips.
_PATIENCE = 2
#: Tokens of KV under each row: between an empty cache and the rows of a real backlog.
_KV_TOKENS = 128
_TIMED_STEPS = 3
#: The look ends after this long, seconds.
_LIMIT_S = 4.0


def provisional_cap(loaded: LoadedModel, budget_bytes: int) -> int:
    """Rows to decode together until something better is known; 1 for a model that cannot batch."""
    if loaded.single:
        return 1
    row_bytes = KV_STEP_TOKENS * loaded.kv_bytes * COPY_FACTOR
    fitting = [size for size in SIZES if size == 1 or size * row_bytes <= budget_bytes]
    sizes = [size for size in fitting if size >= FIRST_SIZE] or fitting[-1:]
    tokens = [1 + at % 16 for at in range(_KV_TOKENS)]
    cache = prefill(loaded.model, tokens, loaded.prefill.tokens)
    return best_size(sizes, lambda size: _rate(loaded.model, cache, size), time.monotonic)


def best_size(sizes: list[int], rate: Callable[[int], float], clock: Callable[[], float]) -> int:
    """The smallest size whose `rate` no larger one beats by `_GAIN`; sizes are tried until that is clear."""
    started = clock()
    best, best_rate, fruitless = sizes[0], rate(sizes[0]), 0
    for size in sizes[1:]:
        if clock() - started > _LIMIT_S or fruitless >= _PATIENCE:
            break
        found = rate(size)
        if found >= best_rate * _GAIN:
            best, best_rate, fruitless = size, found, 0
        else:
            fruitless += 1
    return best


def _rate(model: Any, cache: list[Any], size: int) -> float:
    """Tokens per second of `size` rows at their fastest step; the first is not counted, it compiles."""
    merged = [part.merge([part] * size) for part in cache]
    token = mx.ones((size, 1), dtype=mx.int32)
    seconds = []
    for _ in range(1 + _TIMED_STEPS):
        started = time.perf_counter()
        token = mx.argmax(model(token, cache=merged)[:, -1], axis=-1)[:, None]
        mx.eval(token)
        seconds.append(time.perf_counter() - started)
    return size / min(seconds[1:])
