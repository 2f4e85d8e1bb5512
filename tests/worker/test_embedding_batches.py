"""Batches of like lengths, over an embedder that counts: order, lanes, cancelling, retries, the end of memory."""

from collections.abc import Sequence

import mlx.core as mx
import numpy as np
import pytest

from fleet.job import Embedding, Finish, Sampling
from fleet.messages import RowResult
from fleet.sentence_modules import Pooling
from worker.batching import ORDINARY, Lane, Row
from worker.embedder import Embedder, Pending
from worker.embedding_batches import Batches
from worker.knee import Curve
from worker.token_budget import TokenBudget

pytestmark = pytest.mark.mlx

SHORTAGE = RuntimeError("[malloc] Unable to allocate 4096 bytes.")


class Counting(Embedder):
    """Vectors of (length, 1); a text of `bad` tokens gives zeros `times` times; batches over `room` tokens fail."""

    def __init__(self, *, bad: int = 0, times: int = 0, room: int = 10**9) -> None:
        super().__init__(self, pooling=Pooling.CLS, steps=(), dimension=2, end_token=None)
        self.batches: list[list[int]] = []
        self.bad, self.times, self.room = bad, times, room

    def hidden(self, tokens: np.ndarray, lengths: np.ndarray) -> mx.array:
        self.batches.append([int(length) for length in lengths])
        if tokens.size > self.room:
            raise SHORTAGE
        states = np.stack([lengths, np.ones_like(lengths)], axis=1).astype(np.float32)
        if self.bad in lengths and self.times:
            self.times -= 1
            states[lengths == self.bad] = 0
        return mx.array(states)[:, None, :]


def batches(embedder: Embedder, tokens: int = 24) -> Batches:
    return Batches(embedder, TokenBudget(provisional=tokens, most=1 << 20, curve=Curve(bucket_tokens=64)))


def row(id: int, length: int, *, lane: Lane = ORDINARY, wanted: Embedding | None = None) -> Row:
    return Row(
        id=id,
        key=bytes(16),
        tokens=[1] * length,
        max_tokens=0,
        sampling=Sampling(embedding=wanted or Embedding()),
        lane=lane,
        charged_tokens=length,
    )


def run(some: Batches, cap: int = 100) -> tuple[list[RowResult], list[list[int]]]:
    """Works until nothing waits; the outcomes, and the ids of each batch as announced."""
    results: list[RowResult] = []
    announced: list[list[int]] = []

    def announce(rows: Sequence[Row]) -> None:
        announced.append([row.id for row in rows])

    for _ in range(1000):
        if not some.waiting and not some.running:
            return results, announced
        try:
            started = some.start(cap, announce)
            if some.due(started=started):
                results += some.finish()
        except RuntimeError as error:
            results += some.shed(error)
    raise AssertionError("work never ended")


def test_texts_of_like_length_share_a_batch_within_the_budget_of_padded_tokens() -> None:
    embedder = Counting()
    some = batches(embedder)
    for id, length in enumerate([3, 12, 5, 11, 4, 10, 30]):
        some.put(row(id, length))
    assert some.waiting_tokens == 75
    results, announced = run(some)
    assert embedder.batches == [[30], [12, 11], [10, 5], [4, 3]]
    assert announced == [[6], [1, 3], [5, 2], [4, 0]]
    assert [result.id for result in results] == [6, 1, 3, 5, 2, 4, 0]
    assert some.figures.prompt_tokens == 75
    assert some.figures.padding_tokens == 1 + 5 + 1
    assert some.figures.prefill_s > 0


def test_a_cap_bounds_the_rows_of_a_batch() -> None:
    embedder = Counting()
    some = batches(embedder)
    for id in range(5):
        some.put(row(id, 2))
    run(some, cap=2)
    assert [len(batch) for batch in embedder.batches] == [2, 2, 1]


def test_an_exclusive_row_has_nothing_beside_it_under_way() -> None:
    embedder = Counting()
    some = batches(embedder)
    beside: list[int] = []
    some.put(row(1, 20))
    some.start(100, lambda _: None)
    some.put(row(2, 5, lane=Lane(order=0, shard="s")))
    some.put(row(3, 5))
    assert not some.start(100, lambda _: None)
    some.finish()
    some.start(100, lambda rows: beside.extend(row.id for row in rows))
    assert beside == [2]
    assert not some.start(100, lambda _: None)
    assert some.running == (2,)


def test_rows_are_cancelled_where_they_wait_and_where_they_are_computed() -> None:
    some = batches(Counting())
    some.put(row(1, 20))
    some.put(row(2, 20))
    some.put(row(3, 4))
    some.start(1, lambda _: None)
    some.cancel([1, 3, 99])
    results, _ = run(some)
    assert [result.id for result in results] == [2]
    some.put(row(1, 6))
    assert [result.id for result in run(some)[0]] == [1]


def test_vectors_have_the_form_their_row_asks_for() -> None:
    some = batches(Counting(), tokens=100)
    some.put(row(1, 3))
    some.put(row(2, 3, wanted=Embedding(dtype="float16")))
    some.put(row(3, 3, wanted=Embedding(dimensions=1)))
    vectors = {result.id: result.vector for result in run(some)[0]}
    full = np.array([3, 1]) / np.sqrt(10)
    assert np.allclose(np.frombuffer(vectors[1], "<f4"), full, atol=1e-7)
    assert np.allclose(np.frombuffer(vectors[2], "<f2"), full, atol=1e-3)
    assert np.frombuffer(vectors[3], "<f4").tolist() == [1.0]


def test_what_makes_no_vector_is_tried_once_more_alone_and_then_an_error() -> None:
    once = Counting(bad=5, times=1)
    some = batches(once)
    some.put(row(1, 5))
    some.put(row(2, 4))
    assert {result.id: result.finish for result in run(some)[0]} == {1: Finish.STOP, 2: Finish.STOP}
    assert once.batches == [[5, 4], [5]]
    always = Counting(bad=5, times=99)
    some = batches(always)
    some.put(row(1, 5))
    some.put(row(2, 4))
    results = {result.id: result for result in run(some)[0]}
    assert (results[1].finish, results[2].finish) == (Finish.ERROR, Finish.STOP)
    assert "no vector" in (results[1].error or "")
    assert results[1].vector == b""
    assert always.batches == [[5, 4], [5]]


def test_a_batch_that_finds_no_memory_is_computed_in_smaller_ones() -> None:
    embedder = Counting(room=12)
    some = batches(embedder)
    for id in range(6):
        some.put(row(id, 6))
    results, _ = run(some)
    assert sorted(result.id for result in results) == list(range(6))
    assert all(result.finish is Finish.STOP for result in results)
    assert len(embedder.batches[-1]) <= 2


def test_a_text_that_finds_no_memory_alone_is_an_error() -> None:
    some = batches(Counting(room=5))
    some.put(row(1, 6))
    (result,) = run(some)[0]
    assert result.finish is Finish.ERROR
    assert "Unable to allocate" in (result.error or "")


def test_two_batches_are_under_way_at_once_and_no_more() -> None:
    some = batches(Counting(), tokens=6)
    for id in range(3):
        some.put(row(id, 6))
    assert some.start(100, lambda _: None)
    assert not some.due(started=True)
    assert some.start(100, lambda _: None)
    assert some.due(started=True)
    assert some.running == (0, 1)


def test_the_end_of_memory_while_waiting_for_a_batch_loses_no_row(monkeypatch: pytest.MonkeyPatch) -> None:
    embedder = Counting()
    some = batches(embedder)
    for id in range(4):
        some.put(row(id, 12))
    failing = [True]
    finish = Embedder.finish

    def limited(self: Embedder, pending: Pending) -> np.ndarray:
        if failing.pop() if failing else False:
            raise SHORTAGE
        return finish(self, pending)

    monkeypatch.setattr(Embedder, "finish", limited)
    assert sorted(result.id for result in run(some)[0]) == [0, 1, 2, 3]
