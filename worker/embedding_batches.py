"""Rows that wait to be embedded and the batches under way: longest first, so that a batch has texts of like length."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import mlx.core as mx
import numpy as np

from fleet.job import Embedding, Finish
from fleet.messages import Figures, RowResult
from worker.batching import ORDINARY, Pool, Row
from worker.embedder import Embedder, Pending, sound, unit
from worker.loop import failed
from worker.token_budget import TokenBudget

#: Batches under way at once: while one is computed the next is put together.
TOGETHER = 2
#: How numbers travel, little endian.
DTYPES = {"float32": "<f4", "float16": "<f2"}


@dataclass(frozen=True, slots=True)
class _Batch:
    """Rows under way."""

    rows: Sequence[Row]
    pending: Pending
    started_s: float


class Batches:
    """Owned by the embedding loop."""

    def __init__(self, embedder: Embedder, budget: TokenBudget) -> None:
        self._embedder = embedder
        self._budget = budget
        self._waiting = Pool()
        self._under_way: deque[_Batch] = deque()
        #: rows of a batch that is just being started
        self._starting: Sequence[Row] = ()
        self._cancelled: set[int] = set()
        #: when the last batch ended
        self._free_s = 0.0
        self.figures = Figures()

    @property
    def waiting(self) -> int:
        """Rows in no batch yet."""
        return len(self._waiting)

    @property
    def waiting_tokens(self) -> int:
        """Tokens of these rows."""
        return sum(self._waiting.lengths())

    @property
    def running(self) -> tuple[int, ...]:
        """Rows under way."""
        return tuple(row.id for batch in self._under_way for row in batch.rows)

    def put(self, row: Row) -> None:
        """Adds a row."""
        self._cancelled.discard(row.id)
        self._waiting.put(row)

    def cancel(self, ids: Iterable[int]) -> None:
        """Forgets rows; what is computed of them is dropped."""
        gone = set(ids)
        self._waiting.forget(gone)
        self._cancelled |= gone.intersection(self.running)

    def start(self, cap: int, announce: Callable[[Sequence[Row]], None]) -> bool:
        """Starts a batch of at most `cap` rows, when there is one that may run beside those under way.

        `announce` gets its rows before anything is computed.
        """
        first = self._waiting.first([])
        if first is None or not self._may_join(first):
            return False
        tokens = self._budget.tokens
        self._starting = rows = self._waiting.take([], cap=cap, budget_tokens=tokens, at_most=cap)
        announce(rows)
        started_s = time.monotonic()
        self._under_way.append(_Batch(rows, self._embedder.start([row.tokens for row in rows]), started_s))
        self._starting = ()
        return True

    def due(self, *, started: bool) -> bool:
        """Whether the oldest batch should be waited for: one more stays under way while there is one to start."""
        return bool(self._under_way) and (not started or len(self._under_way) >= TOGETHER)

    def finish(self) -> list[RowResult]:
        """Waits for the oldest batch; the outcomes of its rows."""
        batch = self._under_way[0]
        vectors = self._embedder.finish(batch.pending)
        self._count(batch)
        kept = [at for at, row in enumerate(batch.rows) if row.id not in self._cancelled]
        results = self._results([batch.rows[at] for at in kept], vectors[kept], alone=len(batch.rows) == 1)
        self._under_way.popleft()
        self._cancelled -= {row.id for row in batch.rows}
        return results

    def shed(self, error: BaseException) -> list[RowResult]:
        """Memory ran out: half the budget, and all rows begin anew; the outcome of a text that was alone."""
        rows = [*(row for batch in self._under_way for row in batch.rows), *self._starting]
        self._under_way.clear()
        self._starting = ()
        mx.clear_cache()
        rows = [row for row in rows if row.id not in self._cancelled]
        self._cancelled.clear()
        if len(rows) == 1:
            count = len(rows[0].tokens)
            return [failed(rows[0].id, count, f"{count} tokens alone: {error}")]
        if rows:
            self._budget.halve(len(rows) * max(row.charged_tokens for row in rows) // TOGETHER)
        for row in rows:
            self._waiting.put(row)
        return []

    def _may_join(self, row: Row) -> bool:
        present = {other.lane for batch in self._under_way for other in batch.rows}
        return not present or present == {row.lane} == {ORDINARY}

    def _count(self, batch: _Batch) -> None:
        now = time.monotonic()
        seconds, self._free_s = now - max(batch.started_s, self._free_s), now
        self._budget.worked_s += seconds
        self.figures = replace(
            self.figures,
            prompt_tokens=self.figures.prompt_tokens + batch.pending.tokens,
            padding_tokens=self.figures.padding_tokens + batch.pending.padding_tokens,
            prefill_s=self.figures.prefill_s + seconds,
            peak_bytes=max(self.figures.peak_bytes, mx.get_peak_memory()),
        )

    def _results(self, rows: Sequence[Row], vectors: np.ndarray, *, alone: bool) -> list[RowResult]:
        """The rows' outcomes; what is no vector is computed once more, alone."""
        results: list[RowResult] = []
        for asked, places in _by_form(rows).items():
            made = unit(vectors[places], asked.dimensions).astype(DTYPES[asked.dtype])
            for at, vector, right in zip(places, made, sound(made), strict=True):
                results.append(_result(rows[at], vector) if right else self._again(rows[at], alone=alone))
        return results

    def _again(self, row: Row, *, alone: bool) -> RowResult:
        if alone:
            return failed(row.id, len(row.tokens), "the model gave numbers that make no vector of length 1")
        return self._results([row], self._embedder.finish(self._embedder.start([row.tokens])), alone=True)[0]


def _by_form(rows: Sequence[Row]) -> dict[Embedding, list[int]]:
    """Places in `rows` by how their vectors are wanted."""
    places: dict[Embedding, list[int]] = {}
    for at, row in enumerate(rows):
        asked = row.sampling.embedding
        assert asked is not None, "a row that is not to be embedded was let in"
        places.setdefault(asked, []).append(at)
    return places


def _result(row: Row, vector: np.ndarray) -> RowResult:
    return RowResult(
        id=row.id,
        text="",
        finish=Finish.STOP,
        input_tokens=len(row.tokens),
        output_tokens=0,
        vector=vector.tobytes(),
    )
