"""Times a model on made-up rows: steady decoding at a batch size, and prompts with a setting."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import ArraysCache, CacheList, RotatingKVCache, make_prompt_cache

from worker.generation.batch import Generation
from worker.generation.prefill import Prefix, groups, prefill
from worker.generation.rows import GenRow
from worker.knee import Prefill, PrefillSample, Sample

#: Steps before the clock starts: the first one at a batch size compiles.
_WARM_STEPS = 2
#: Timed steps: so many at least, and more while they take less than this together.
_LEAST_STEPS, _MOST_STEPS = 3, 16
_TIMED_S = 0.5
#: Made-up rows that are placed together; bounds the memory that placing takes.
_TOGETHER = 8
#: Prompts are computed until this is over, seconds.
_PREFILL_S = 1.0
#: The longest prompt timed: longer ones are computed in evaluations like these.
_PROMPT_TOKENS = 512


class Gauge:
    """Measures one model beside whatever else it does; keeps nothing in memory between two calls."""

    def __init__(self, model: Any, *, vocabulary: int, clock: Callable[[], float] = time.perf_counter) -> None:
        self._model = model
        self._clock = clock
        self._random = np.random.default_rng(0)
        self._vocabulary = vocabulary
        #: most bytes MLX held during any sample
        self.peak_bytes = 0

    def decode(self, rows: int, tokens: int) -> Sample:
        """Decoding `rows` rows with about `tokens` cached each, of two lengths as in a real batch.

        Keys and values are random: no prompt is computed. Resets MLX's peak of memory.
        """
        mx.reset_peak_memory()
        template = make_prompt_cache(self._model)
        mx.eval(self._model(mx.array([[1, 1]]), cache=template))
        lengths = (max(tokens, 2), max(tokens - 1, 1))
        prefixes = [made_up(self._model, template, length) for length in lengths]
        generation = Generation(
            self._model, prefill_rows=_TOGETHER, prefill_tokens=_TOGETHER, eos=frozenset(), slots=rows
        )
        first = self._tokens(rows)
        most = _WARM_STEPS + _MOST_STEPS + 1
        generation.insert(
            [GenRow(id=i, tokens=[first[i]], max_tokens=most, prefix=prefixes[i % 2]) for i in range(rows)]
        )
        del template, prefixes
        for _ in range(_WARM_STEPS):
            generation.step()
        seconds: list[float] = []
        while len(seconds) < _LEAST_STEPS or (len(seconds) < _MOST_STEPS and sum(seconds) < _TIMED_S):
            started = self._clock()
            generation.step()
            seconds.append(self._clock() - started)
        peak = mx.get_peak_memory()
        self.peak_bytes = max(self.peak_bytes, peak)
        del generation
        mx.clear_cache()
        return Sample(rows=rows, tps=rows / statistics.median(seconds), peak_bytes=peak)

    def prefill(self, setting: Prefill, tokens: int, prompts: int) -> PrefillSample:
        """Computing `prompts` random prompts of unequal lengths, the longest of `tokens`; as many as time allows."""
        longest = max(2, min(tokens, _PROMPT_TOKENS))
        lengths = [longest - longest * i // (2 * prompts) for i in range(prompts)]
        made = [self._tokens(length) for length in lengths]
        cohorts = [[made[i] for i in cohort] for cohort in groups(lengths, rows=setting.rows)]
        chunk = max(1, setting.tokens // len(cohorts[0]))
        prefill(self._model, [prompt[:chunk] for prompt in cohorts[0]], tokens_per_eval=setting.tokens)  # compiles
        computed, started = 0, self._clock()
        for cohort in cohorts:
            prefill(self._model, cohort, tokens_per_eval=setting.tokens)
            computed += sum(map(len, cohort))
            if self._clock() - started > _PREFILL_S:
                break
        seconds = self._clock() - started
        mx.clear_cache()
        return PrefillSample(setting=setting, tps=computed / seconds)

    def _tokens(self, count: int) -> list[int]:
        drawn: list[int] = self._random.integers(0, self._vocabulary, count).tolist()
        return drawn


def made_up(model: Any, template: Sequence[Any], tokens: int) -> Prefix:
    """State as if `tokens` had been computed, random where it is keys and values; `template` is any computed state."""
    caches = make_prompt_cache(model)
    for i, (cache, like) in enumerate(zip(caches, template, strict=True)):
        _fill(cache, like, tokens, mx.random.key(i))
    mx.eval([cache.state for cache in caches if not cache.empty()])
    return Prefix(tokens=(0,) * tokens, caches=tuple(caches))


def _fill(cache: Any, like: Any, tokens: int, key: mx.array) -> None:
    if isinstance(cache, CacheList):
        for part, inner in zip(cache.caches, like.caches, strict=True):
            _fill(part, inner, tokens, key)
    elif isinstance(cache, ArraysCache):
        cache.cache = list(like.cache)
    elif like.keys is not None:
        ring = isinstance(cache, RotatingKVCache)
        columns = min(tokens, cache.max_size) if ring else tokens
        cache.update_and_fetch(*(_random_like(array, columns, key) for array in (like.keys, like.values)))
        cache.offset = tokens


def _random_like(array: mx.array, columns: int, key: mx.array) -> mx.array:
    shape = (1, array.shape[1], columns, array.shape[3])
    return mx.random.normal(shape, dtype=array.dtype, key=key)
