"""Vectors as they are written: JSONL, OpenAI's lines, Parquet, NumPy; in order, whole, with what they are of."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from coordinator.ledger.ledger import Ledger
from coordinator.outputs import vector_table
from coordinator.outputs.results import ResultCounts, errors_file, write_results
from coordinator.outputs.vector_files import ids_file, origin_file
from coordinator.records import JobRecord, NewRequest, Place, Source
from fleet.config import StateDir
from fleet.errors import UsageError
from fleet.job import Task
from tests.ledgers import done, embedded, request, spec, text_row, unit

URL = "/v1/embeddings"
PIECES = (Place(text=0, start=0, end=90), Place(text=0, start=80, end=150))
CUT = (Place(text=0, start=0, end=70, cut_tokens=300),)


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger.open(StateDir(tmp_path / "state")) as ledger:
        yield ledger


@pytest.fixture
def job(ledger: Ledger) -> JobRecord:
    return begin(ledger)


def begin(ledger: Ledger, **options: Any) -> JobRecord:
    return ledger.begin_job(spec(task=Task.EMBED, options=json.dumps(options)))[0]


def texts(name: str, *numbers: int, places: tuple[Place, ...] = (), **fields: Any) -> NewRequest:
    dtype, dimensions = fields.pop("dtype", "float32"), fields.pop("dimensions", 0)
    rows = [text_row(number, dtype=dtype, dimensions=dimensions) for number in numbers]
    placed = tuple(replace(row, place=place) for row, place in zip(rows, places or [None] * len(rows), strict=True))
    return NewRequest(custom_id=name, source=Source(file="/in.jsonl", line=1), rows=placed, **fields)


def fill(ledger: Ledger, job: JobRecord, dtype: str = "float32") -> None:
    """Four requests: a whole text, one in two pieces, a bad line, one that was cut."""
    ledger.add_requests(
        job.id,
        [
            texts("b", 1, extra='{"page": 3, "end": "x"}', dtype=dtype),
            texts("a", 2, 3, places=PIECES, dtype=dtype),
            request("bad", error="text is empty: nothing to embed", line=3),
            texts("c", 4, places=CUT, extra='{"page": 5}', dtype=dtype),
        ],
    )
    ledger.commit("w", [embedded(number, unit(number, dtype=dtype)) for number in (3, 1, 4, 2)])


def numbers(number: int, dtype: str = "float32") -> list[float]:
    values: list[float] = np.frombuffer(unit(number, dtype=dtype), dtype).tolist()
    return values


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


# -- lines -----------------------------------------------------------------------------------------


def test_a_flat_output_has_a_line_for_every_request_in_input_order(
    ledger: Ledger, job: JobRecord, tmp_path: Path
) -> None:
    fill(ledger, job)
    out = tmp_path / "out.jsonl"
    assert write_results(ledger, job, openai=False, output=str(out)) == ResultCounts(done=3, failed=1)
    whole, pieces, bad, cut = read(out)
    assert whole == {
        "id": "b",
        "embedding": numbers(1),
        "truncated": False,
        "finish_reason": "stop",
        "input_tokens": 3,
        "output_tokens": 0,
        "error": None,
        "page": 3,
        "input_end": "x",
    }
    assert (pieces["embeddings"], pieces["spans"]) == ([numbers(2), numbers(3)], [[0, 90], [80, 150]])
    assert (bad["embedding"], bad["error"]) == (None, "text is empty: nothing to embed")
    assert (cut["truncated"], cut["text_tokens"], cut["input_tokens"]) == (True, 300, 3)
    assert [line["id"] for line in read(errors_file(str(out)))] == ["bad"]


def test_openai_lines_get_openais_answers(ledger: Ledger, job: JobRecord, tmp_path: Path) -> None:
    packed = json.dumps({"encoding_format": "base64"})
    ledger.add_requests(job.id, [texts("one", 1, url=URL), texts("two", 2, 3, url=URL, extra=packed)])
    ledger.commit("w", [embedded(number) for number in (1, 2, 3)])
    out = tmp_path / "out.jsonl"
    write_results(ledger, job, openai=True, output=str(out))
    one, two = (line["response"]["body"] for line in read(out))
    assert one == {
        "object": "list",
        "data": [{"object": "embedding", "index": 0, "embedding": numbers(1)}],
        "model": "/models/tiny",
        "usage": {"prompt_tokens": 3, "total_tokens": 3},
    }
    assert [entry["index"] for entry in two["data"]] == [0, 1]
    assert [base64.b64decode(entry["embedding"]) for entry in two["data"]] == [unit(2), unit(3)]


def test_base64_is_float32_whatever_was_stored(ledger: Ledger, tmp_path: Path) -> None:
    job = begin(ledger, dtype="float16")
    extra = json.dumps({"encoding_format": "base64"})
    ledger.add_requests(job.id, [texts("one", 1, url=URL, extra=extra, dtype="float16")])
    ledger.commit("w", [embedded(1, unit(1, dtype="float16"))])
    out = tmp_path / "out.jsonl"
    write_results(ledger, job, openai=True, output=str(out))
    (entry,) = read(out)[0]["response"]["body"]["data"]
    assert np.frombuffer(base64.b64decode(entry["embedding"]), "<f4").tolist() == numbers(1, "float16")


def test_several_pieces_of_one_openai_text_share_its_index_and_say_where_they_are(
    ledger: Ledger, job: JobRecord, tmp_path: Path
) -> None:
    places = (*PIECES, Place(text=1, start=0, end=5))
    ledger.add_requests(job.id, [texts("one", 1, 2, 3, url=URL, places=places)])
    ledger.commit("w", [embedded(number) for number in (1, 2, 3)])
    out = tmp_path / "out.jsonl"
    write_results(ledger, job, openai=True, output=str(out))
    data = read(out)[0]["response"]["body"]["data"]
    assert [(entry["index"], entry["start"], entry["end"]) for entry in data] == [(0, 0, 90), (0, 80, 150), (1, 0, 5)]


# -- Parquet ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_parquet_output_has_a_row_for_each_vector(ledger: Ledger, tmp_path: Path, dtype: str) -> None:
    job = begin(ledger, dtype=dtype)
    fill(ledger, job, dtype)
    out = tmp_path / "out.parquet"
    assert write_results(ledger, job, openai=False, output=str(out)) == ResultCounts(done=3, failed=1)
    table = pq.read_table(out)
    numbers_type = "float" if dtype == "float32" else "halffloat"
    assert str(table.schema.field("vector").type) == f"fixed_size_list<element: {numbers_type}>[8]"
    assert table.column("vector").to_pylist() == [numbers(number, dtype) for number in (1, 2, 3, 4)]
    assert table.drop_columns("vector").to_pydict() == {
        "id": ["b", "a", "a", "c"],
        "tokens": [3, 3, 3, 3],
        "truncated": [False, False, False, True],
        "chunk": [0, 0, 1, 0],
        "start": [None, 0, 80, 0],
        "end": [None, 90, 150, 70],
        "page": [3, None, None, 5],
        "input_end": ["x", None, None, None],
    }
    assert [line["id"] for line in read(errors_file(str(out)))] == ["bad"]


def test_a_parquet_output_says_which_model_made_it(ledger: Ledger, job: JobRecord, tmp_path: Path) -> None:
    fill(ledger, job)
    out = tmp_path / "out.parquet"
    write_results(ledger, job, openai=False, output=str(out))
    about = json.loads(pq.read_metadata(out).metadata[vector_table.METADATA])
    assert about == {
        "model": "/models/tiny",
        "model_hash": "ab",
        "encoder_hash": "",
        "dtype": "float32",
        "dimensions": 8,
        "rows": 4,
    }


def test_vectors_go_into_the_table_group_by_group(
    ledger: Ledger, job: JobRecord, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vector_table, "GROUP_BYTES", 5 * 32)
    ledger.add_requests(job.id, [texts(f"r{number}", number) for number in range(1, 14)])
    ledger.commit("w", [embedded(number) for number in range(1, 14)])
    out = tmp_path / "out.parquet"
    write_results(ledger, job, openai=False, output=str(out))
    file = pq.ParquetFile(out)
    assert [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)] == [5, 5, 3]
    assert file.read().column("vector").to_pylist() == [numbers(number) for number in range(1, 14)]


def test_texts_that_were_cut_say_how_long_they_were(ledger: Ledger, tmp_path: Path) -> None:
    job = begin(ledger, long="truncate")
    ledger.add_requests(job.id, [texts("a", 1), texts("c", 4, places=CUT)])
    ledger.commit("w", [embedded(1), embedded(2)])
    out = tmp_path / "out.parquet"
    write_results(ledger, job, openai=False, output=str(out))
    table = pq.read_table(out).drop_columns("vector").to_pydict()
    assert table == {"id": ["a", "c"], "tokens": [3, 3], "truncated": [False, True], "text_tokens": [None, 300]}


def test_a_table_of_openai_lines_tells_which_text_of_a_line_a_vector_is_of(
    ledger: Ledger, job: JobRecord, tmp_path: Path
) -> None:
    extra = json.dumps({"encoding_format": "base64"})
    ledger.add_requests(job.id, [texts("one", 1, url=URL, extra=extra), texts("two", 2, 3, url=URL)])
    ledger.commit("w", [embedded(number) for number in (1, 2, 3)])
    out = tmp_path / "out.parquet"
    write_results(ledger, job, openai=True, output=str(out))
    table = pq.read_table(out).drop_columns("vector").to_pydict()
    assert table == {
        "id": ["one", "two", "two"],
        "index": [0, 0, 1],
        "tokens": [3, 3, 3],
        "truncated": [False, False, False],
    }


def test_vectors_of_two_sizes_make_no_table(ledger: Ledger, job: JobRecord, tmp_path: Path) -> None:
    ledger.add_requests(job.id, [texts("a", 1), texts("b", 2, dimensions=4)])
    ledger.commit("w", [embedded(1), embedded(2, unit(2, dimensions=4))])
    for name in ("out.parquet", "out.npy"):
        with pytest.raises(UsageError, match=r"8 and 4 numbers.*choose an output in .jsonl"):
            write_results(ledger, job, openai=False, output=str(tmp_path / name))
    assert [path.name for path in tmp_path.iterdir()] == ["state"]


@pytest.mark.parametrize("name", ["out.parquet", "out.npy"])
def test_an_output_without_one_vector_can_be_read(ledger: Ledger, job: JobRecord, tmp_path: Path, name: str) -> None:
    ledger.add_requests(job.id, [request("bad", error="text is empty: nothing to embed")])
    write_results(ledger, job, openai=False, output=str(tmp_path / name))
    rows = len(np.load(tmp_path / name)) if name.endswith("npy") else pq.read_table(tmp_path / name).num_rows
    assert rows == 0


# -- NumPy -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_matrix_has_its_ids_and_its_origin_beside_it(ledger: Ledger, tmp_path: Path, dtype: str) -> None:
    job = begin(ledger, dtype=dtype)
    fill(ledger, job, dtype)
    out = tmp_path / "out.npy"
    assert write_results(ledger, job, openai=False, output=str(out)) == ResultCounts(done=3, failed=1)
    matrix = np.load(out, mmap_mode="r")
    assert (matrix.dtype, matrix.shape) == (np.dtype(dtype), (4, 8))
    assert matrix.tolist() == [numbers(number, dtype) for number in (1, 2, 3, 4)]
    assert read(ids_file(str(out))) == [
        {"id": "b", "tokens": 3, "truncated": False, "page": 3, "input_end": "x"},
        {"id": "a", "tokens": 3, "truncated": False, "chunk": 0, "start": 0, "end": 90},
        {"id": "a", "tokens": 3, "truncated": False, "chunk": 1, "start": 80, "end": 150},
        {"id": "c", "tokens": 3, "truncated": True, "chunk": 0, "start": 0, "end": 70, "text_tokens": 300, "page": 5},
    ]
    assert json.loads(origin_file(str(out)).read_text())["dtype"] == dtype


def test_a_matrix_goes_with_embed_only(ledger: Ledger, tmp_path: Path) -> None:
    job = ledger.begin_job(spec())[0]
    ledger.add_requests(job.id, [request("a", 1)])
    ledger.commit("w", [done(1)])
    with pytest.raises(UsageError, match="holds vectors, and generate makes none"):
        write_results(ledger, job, openai=False, output=str(tmp_path / "out.npy"))
