"""Token generation one row at a time, for models whose caches cannot hold several rows; and the choice of a loop."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import mlx.core as mx
from mlx_lm.generate import generation_stream
from mlx_lm.models.cache import make_prompt_cache

from fleet.job import Finish
from worker.generation.batch import Generation as Batch
from worker.generation.prefill import Prefix
from worker.generation.rows import Counters, GenRow, Step


class Generation(Protocol):
    """A batch of rows that decode together."""

    counters: Counters

    def compute_prefix(self, tokens: Sequence[int]) -> Prefix | None:
        """Computes tokens that many rows begin with; None where rows are computed whole."""

    def expect(self, slots: int) -> None:
        """From now on about `slots` rows run together."""

    def prefill_as(self, *, rows: int, tokens: int) -> None:
        """From now on so many prompts are computed together, so many tokens an evaluation."""

    def reset(self) -> None:
        """Lets go of all rows and their memory, in whatever state an error left them."""

    def insert(self, rows: Sequence[GenRow]) -> None:
        """Computes these rows' prompts; they decode from the next step or the one after."""

    def step(self) -> list[Step]:
        """One token more of each row in the batch; rows that finish are gone from it."""

    def remove(self, ids: Iterable[int]) -> None:
        """Takes rows out."""


class SoloGeneration:
    """One row at a time, over the model's plain caches: for models whose caches cannot be merged."""

    def __init__(self, model: Any, *, prefill_tokens: int, eos: frozenset[int]) -> None:
        self.counters = Counters()
        self._model = model
        self._prefill_tokens = prefill_tokens
        self._eos = eos
        self._row: GenRow | None = None
        self._cache: list[Any] = []
        self._context: list[int] = []

    def compute_prefix(self, tokens: Sequence[int]) -> Prefix | None:
        """None: the row there is writes its own cache."""
        del tokens
        return None

    def expect(self, slots: int) -> None:
        """Nothing to do: there is one row."""

    def prefill_as(self, *, rows: int, tokens: int) -> None:
        """`tokens` an evaluation; there is one row."""
        del rows
        self._prefill_tokens = tokens

    def reset(self) -> None:
        """Lets go of the row."""
        self._row, self._cache = None, []

    def insert(self, rows: Sequence[GenRow]) -> None:
        """Computes the row's prompt; RuntimeError when a row is there already."""
        if len(rows) + (self._row is not None) > 1:
            raise RuntimeError("a model that cannot batch was given two rows")
        for row in rows:
            started = time.perf_counter()
            with mx.stream(generation_stream):
                self._cache = prefill(self._model, row.tokens[:-1], self._prefill_tokens)
            self._row, self._context = row, [row.tokens[-1]]
            self.counters.prompt_tokens += len(row.tokens)
            self.counters.prefill_s += time.perf_counter() - started

    def step(self) -> list[Step]:
        """One token more."""
        row = self._row
        if row is None:
            return []
        started = time.perf_counter()
        with mx.stream(generation_stream):
            logits = self._model(mx.array([self._context[-1:]]), cache=self._cache)[:, -1]
            if row.processor:
                logits = row.processor(mx.array(self._context), logits)
            chosen: Any = row.sampler(logits - mx.logsumexp(logits, axis=-1, keepdims=True)).item()
            token = int(chosen)
        self._context.append(token)
        self.counters.decode_s += time.perf_counter() - started
        self.counters.steps += 1
        self.counters.step_rows += 1
        length = Finish.LENGTH if len(self._context) > row.max_tokens else None
        finish = Finish.STOP if token in self._eos else length
        if finish is not None:
            self.remove([row.id])
        return [(row.id, token, finish)]

    def remove(self, ids: Iterable[int]) -> None:
        """Takes the row out."""
        if self._row is not None and self._row.id in set(ids):
            self._row, self._cache = None, []


def prefill(model: Any, tokens: Sequence[int], chunk_tokens: int) -> list[Any]:
    """A fresh cache that holds `tokens`, computed `chunk_tokens` at a time."""
    cache: list[Any] = make_prompt_cache(model)
    for at in range(0, len(tokens), chunk_tokens):
        model(mx.array([tokens[at : at + chunk_tokens]]), cache=cache)
        mx.eval([part.state for part in cache])
    return cache


def make_generation(
    model: Any, *, single: bool, slots: int, prefill_rows: int, prefill_tokens: int, eos: frozenset[int]
) -> Generation:
    """The generation that suits the model; `slots` rows are expected together."""
    if single:
        return SoloGeneration(model, prefill_tokens=prefill_tokens, eos=eos)
    return Batch(model, prefill_rows=prefill_rows, prefill_tokens=prefill_tokens, eos=eos, slots=slots)
