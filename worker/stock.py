"""Token generation over mlx-lm's own loops: `StockGeneration` for models that batch, `SoloGeneration` for the others.

Prompts are computed here, not by BatchGenerator: it works on a prompt a chunk per decode step, so that a full batch
is rarely reached, and it computes short prompts of a batch together, padded. It gets finished caches and joins
them to the batch in one cohort.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import mlx.core as mx
from mlx_lm.generate import BatchGenerator, PromptProcessingBatch, generation_stream
from mlx_lm.models.cache import make_prompt_cache

from fleet.job import Finish
from worker.generation.rows import Counters, GenRow, Step

#: More rows than any batch: how many run is decided outside.
_NO_LIMIT = 1 << 20
#: mlx-lm leaves cache state unevaluated in some models, a leak (mlx-lm issue 1845); evaluated this often, in steps.
_EVALUATE_STEPS = 256


class Generation(Protocol):
    """A batch of rows that decode together."""

    counters: Counters

    def insert(self, rows: Sequence[GenRow]) -> None:
        """Computes these rows' prompts; they decode from the next step or the one after."""

    def step(self) -> list[Step]:
        """One token more of each row in the batch; rows that finish are gone from it."""

    def remove(self, ids: Iterable[int]) -> None:
        """Takes rows out."""


class StockGeneration:
    """Generation over BatchGenerator."""

    def __init__(self, model: Any, *, prefill_rows: int, prefill_tokens: int, eos: frozenset[int]) -> None:
        self.counters = Counters()
        self._model = model
        self._prefill_rows = prefill_rows
        self._prefill_tokens = prefill_tokens
        self._generator = BatchGenerator(
            model,
            stop_tokens=[[token] for token in sorted(eos)],
            completion_batch_size=_NO_LIMIT,
            prefill_batch_size=_NO_LIMIT,
            prefill_step_size=prefill_tokens,
        )
        self._uid_of: dict[int, int] = {}
        self._id_of: dict[int, int] = {}

    def insert(self, rows: Sequence[GenRow]) -> None:
        """Computes these rows' prompts; they join the batch at the next step."""
        started = time.perf_counter()
        for at in range(0, len(rows), self._prefill_rows):
            self._insert_together(rows[at : at + self._prefill_rows])
        self.counters.prefill_s += time.perf_counter() - started

    def _insert_together(self, rows: Sequence[GenRow]) -> None:
        with mx.stream(self._generator.stream):
            caches = self._prefill([list(row.tokens[:-1]) for row in rows])
        uids = self._generator.insert(
            [[row.tokens[-1]] for row in rows],
            [row.max_tokens for row in rows],
            caches=caches,
            samplers=[row.sampler for row in rows],
            logits_processors=[[row.processor] if row.processor else [] for row in rows],
        )
        for row, uid in zip(rows, uids, strict=True):
            self._uid_of[row.id], self._id_of[uid] = uid, row.id

    def _prefill(self, prompts: list[list[int]]) -> list[list[Any]]:
        lengths = [len(prompt) for prompt in prompts]
        self.counters.prompt_tokens += sum(lengths) + len(prompts)
        self.counters.padding_tokens += max(lengths) * len(lengths) - sum(lengths)
        if len(prompts) == 1:
            return [prefill(self._model, prompts[0], self._prefill_tokens)]
        caches = [make_prompt_cache(self._model) for _ in prompts]
        batch = PromptProcessingBatch(
            self._model, list(range(len(prompts))), caches, prefill_step_size=self._prefill_tokens // len(prompts)
        )
        batch.prompt(prompts)
        return [batch.extract_cache(at) for at in range(len(prompts))]

    def step(self) -> list[Step]:
        """One token more of each row; empty when the rows have only just joined."""
        started = time.perf_counter()
        _, responses = self._generator.next()
        self.counters.decode_s += time.perf_counter() - started
        if responses:
            self.counters.steps += 1
            self.counters.step_rows += len(responses)
            if self.counters.steps % _EVALUATE_STEPS == 0:
                mx.eval([cache.state for cache in self._generator._generation_batch.prompt_cache])
        steps = [(self._id_of[r.uid], r.token, _FINISH[r.finish_reason]) for r in responses]
        for id, _, finish in steps:
            if finish is not None:
                self._forget(id)
        return steps

    def remove(self, ids: Iterable[int]) -> None:
        """Takes rows out of the batch."""
        uids = [self._uid_of[id] for id in ids]
        with mx.stream(self._generator.stream):
            self._generator.remove(uids)
        for uid in uids:
            self._forget(self._id_of[uid])

    def _forget(self, id: int) -> None:
        del self._id_of[self._uid_of.pop(id)]


_FINISH = {"stop": Finish.STOP, "length": Finish.LENGTH, None: None}


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
    model: Any, *, single: bool, prefill_rows: int, prefill_tokens: int, eos: frozenset[int]
) -> Generation:
    """The generation that suits the model."""
    if single:
        return SoloGeneration(model, prefill_tokens=prefill_tokens, eos=eos)
    return StockGeneration(model, prefill_rows=prefill_rows, prefill_tokens=prefill_tokens, eos=eos)
