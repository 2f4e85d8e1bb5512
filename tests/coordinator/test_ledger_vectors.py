"""Vectors in the ledger: kept as they came, checked before, and which text they are of."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from coordinator.ledger.ledger import Ledger
from coordinator.records import NewRequest, Place, Source
from fleet.config import StateDir
from fleet.job import RequestState, Task
from tests.ledgers import done, embedded, failed, row, spec, text_row, unit


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    ledger = Ledger.open(StateDir(tmp_path / "state"))
    yield ledger
    ledger.validate()
    ledger.close()


@pytest.fixture
def job(ledger: Ledger) -> int:
    return ledger.begin_job(spec(task=Task.EMBED))[0].id


def texts(name: str, *numbers: int, dtype: str = "float32", places: tuple[Place, ...] = ()) -> NewRequest:
    rows = [text_row(number, dtype=dtype) for number in numbers]
    placed = [replace(row, place=place) for row, place in zip(rows, places or [None] * len(rows), strict=True)]
    return NewRequest(custom_id=name, source=Source(file="/in.jsonl", line=1), rows=tuple(placed))


def test_a_vector_comes_back_byte_by_byte(ledger: Ledger, job: int) -> None:
    ledger.add_requests(job, [texts("a", 1)])
    ledger.commit("w", [embedded(1)])
    (answer,) = ledger.answers(job, vectors=True)
    assert answer.parts[0].vector == unit(1)
    assert np.frombuffer(answer.parts[0].vector, "<f4").shape == (8,)


def test_who_does_not_ask_for_vectors_reads_none(ledger: Ledger, job: int) -> None:
    ledger.add_requests(job, [texts("a", 1)])
    ledger.commit("w", [embedded(1)])
    assert [part.vector for answer in ledger.answers(job) for part in answer.parts] == [b""]


def test_a_piece_knows_its_place_in_the_text_and_a_whole_text_has_none(ledger: Ledger, job: int) -> None:
    places = (Place(text=0, start=0, end=90), Place(text=1, start=0, end=80, cut_tokens=300))
    ledger.add_requests(job, [texts("a", 1, 2, places=places), texts("b", 1)])
    ledger.commit("w", [embedded(1), embedded(2)])
    assert [[part.place for part in answer.parts] for answer in ledger.answers(job)] == [list(places), [None]]


def test_one_computation_is_a_piece_here_and_a_whole_text_there(ledger: Ledger, job: int) -> None:
    place = Place(text=0, start=5, end=9)
    assert len(ledger.add_requests(job, [texts("a", 1), texts("b", 1, places=(place,))])) == 1
    ledger.commit("w", [embedded(1)])
    assert [answer.parts[0].place for answer in ledger.answers(job)] == [None, place]


def test_a_row_to_embed_is_open_without_new_tokens(ledger: Ledger, job: int) -> None:
    (opened,) = ledger.add_requests(job, [texts("a", 1)])
    assert (opened.length, opened.max_tokens) == (3, 0)
    embedding = ledger.sampling(opened.sampling).embedding
    assert embedding is not None
    assert embedding.dtype == "float32"


@pytest.mark.parametrize(
    ("vector", "dtype", "sentence"),
    [
        (b"", "float32", "a vector of 0 bytes, which is none of float32"),
        (b"123", "float32", "a vector of 3 bytes"),
        ((unit(1) * 2)[:32] + b"\0", "float16", "a vector of 33 bytes, which is none of float16"),
        (np.ones(8, "<f4").tobytes(), "float32", "of length 2.82843, expected 1"),
        (np.zeros(8, "<f4").tobytes(), "float32", "of length 0, expected 1"),
        (np.full(8, np.nan, "<f4").tobytes(), "float32", "of length nan, expected 1"),
        (np.full(8, np.inf, "<f2").tobytes(), "float16", "of length inf, expected 1"),
    ],
)
def test_what_is_no_unit_vector_fails_its_row_and_is_not_stored(
    ledger: Ledger, job: int, vector: bytes, dtype: str, sentence: str
) -> None:
    ledger.add_requests(job, [texts("a", 1, dtype=dtype)])
    ledger.commit("w", [replace(embedded(1), vector=vector)])
    (answer,) = ledger.answers(job, vectors=True)
    assert answer.state is RequestState.ERROR
    assert sentence in (answer.error or "")


def test_a_vector_of_other_dimensions_than_asked_for_fails_its_row(ledger: Ledger, job: int) -> None:
    request = replace(texts("a", 1), rows=(text_row(1, dimensions=4),))
    ledger.add_requests(job, [request])
    ledger.commit("w", [embedded(1)])
    (answer,) = ledger.answers(job)
    assert answer.state is RequestState.ERROR


def test_a_row_that_failed_needs_no_vector(ledger: Ledger, job: int) -> None:
    ledger.add_requests(job, [texts("a", 1)])
    ledger.commit("w", [failed(1, "no unit vector after one retry alone")])
    (answer,) = ledger.answers(job)
    assert answer.error == "no unit vector after one retry alone"


def test_rows_that_decode_have_no_vector(ledger: Ledger) -> None:
    job = ledger.begin_job(spec())[0].id
    ledger.add_requests(job, [NewRequest(custom_id="a", source=Source(file="f", line=1), rows=(row(1),))])
    ledger.commit("w", [done(1)])
    (answer,) = ledger.answers(job, vectors=True)
    assert answer.parts[0].vector == b""
