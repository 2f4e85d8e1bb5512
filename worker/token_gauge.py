"""Times an embedder on made-up batches of one size."""

from __future__ import annotations

import statistics
import time

import mlx.core as mx
import numpy as np

from worker.embedder import Embedder
from worker.knee import Sample
from worker.token_budget import SAMPLE_TOKENS

#: A batch before the clock starts, since the first one of a size compiles; then at least so many, and more while
#: they take less than this together, seconds.
_LEAST_BATCHES, _MOST_BATCHES = 2, 16
_TIMED_S = 0.3


class TokenGauge:
    """Measures one embedder; keeps nothing in memory between two calls."""

    def __init__(self, embedder: Embedder, *, vocabulary: int, max_seq_tokens: int) -> None:
        self._embedder = embedder
        self._vocabulary = vocabulary
        self._text_tokens = min(SAMPLE_TOKENS, max_seq_tokens)
        self._random = np.random.default_rng(0)

    def sample(self, budget_tokens: int) -> Sample:
        """Tokens per second in batches of `budget_tokens`."""
        rows = max(1, budget_tokens // self._text_tokens)
        texts = self._random.integers(0, self._vocabulary, (rows, self._text_tokens)).tolist()
        self._embedder.finish(self._embedder.start(texts))
        seconds: list[float] = []
        while len(seconds) < _LEAST_BATCHES or (len(seconds) < _MOST_BATCHES and sum(seconds) < _TIMED_S):
            started = time.perf_counter()
            self._embedder.finish(self._embedder.start(texts))
            seconds.append(time.perf_counter() - started)
        mx.clear_cache()
        return Sample(rows=budget_tokens, tps=rows * self._text_tokens / statistics.median(seconds))
