"""Nearest neighbours over both kinds of file, and the vectors of other models refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from coordinator.commands.search import line
from coordinator.ledger.ledger import Ledger
from coordinator.outputs import vector_search, vector_table
from coordinator.outputs.query_vector import check_model
from coordinator.outputs.results import write_results
from coordinator.outputs.vector_files import Origin, ids_file, origin_file
from coordinator.outputs.vector_search import nearest, open_vectors
from coordinator.records import NewRequest, Place, Source
from fleet.cli import main
from fleet.config import StateDir
from fleet.encoder_folder import read_encoder
from fleet.errors import ModelError, UsageError
from fleet.job import Task
from tests.embedders import bare_embedder
from tests.ledgers import embedded, spec, text_row, unit

ROWS = 25
#: The vector called 4, as a query.
QUERY = np.frombuffer(unit(4), np.float32)


@pytest.fixture(params=["out.parquet", "out.npy"])
def written(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Vectors 1 to 25 of texts r1 to r25, in several groups and blocks; the seventh is a piece."""
    monkeypatch.setattr(vector_table, "GROUP_ROWS", 6)
    monkeypatch.setattr(vector_search, "BLOCK_ROWS", 4)
    out = tmp_path / request.param
    with Ledger.open(StateDir(tmp_path / "state")) as ledger:
        job, _ = ledger.begin_job(spec(task=Task.EMBED))
        ledger.add_requests(job.id, [text(number) for number in range(1, ROWS + 1)])
        ledger.commit("w", [embedded(number) for number in range(1, ROWS + 1)])
        write_results(ledger, job, openai=False, output=str(out))
    return out


def text(number: int) -> NewRequest:
    row = text_row(number)
    if number == 7:
        row = replace(row, place=Place(text=0, start=10, end=20))
    source = Source(file="f", line=number)
    return NewRequest(custom_id=f"r{number}", source=source, rows=(row,), extra=json.dumps({"page": number}))


def cosines() -> list[float]:
    return [float(np.frombuffer(unit(number), np.float32) @ QUERY) for number in range(1, ROWS + 1)]


@pytest.mark.parametrize("count", [1, 3, 24, 25, 100])
def test_the_nearest_are_exactly_the_nearest(written: Path, count: int) -> None:
    found = nearest(open_vectors(str(written)).blocks(), QUERY, count)
    expected = sorted(range(ROWS), key=lambda row: -cosines()[row])[:count]
    assert [row for _, row in found] == expected
    assert found[0] == (pytest.approx(1.0, abs=1e-6), 3)
    assert [score for score, _ in found] == pytest.approx([cosines()[row] for row in expected], abs=1e-6)


def test_of_a_neighbour_everything_is_told_but_its_vector(written: Path) -> None:
    seventh, first, last = open_vectors(str(written)).about([6, 0, 24])
    assert seventh == {
        "id": "r7",
        "tokens": 3,
        "truncated": False,
        "chunk": 0,
        "start": 10,
        "end": 20,
        "page": 7,
    }
    assert (first["id"], last["id"]) == ("r1", "r25")
    assert "start" not in first


def test_float16_vectors_are_compared_in_float32() -> None:
    matrix = np.eye(3, 64, dtype=np.float16)
    assert nearest([matrix], np.eye(1, 64, 1)[0], 1) == [(1.0, 1)]


def test_equal_scores_come_in_the_files_order() -> None:
    block = np.tile(np.eye(1, 4, dtype=np.float32), (3, 1))
    assert [row for _, row in nearest([block, block], np.eye(1, 4)[0], 4)] == [0, 1, 2, 3]


def test_a_file_that_names_no_model_is_refused(tmp_path: Path) -> None:
    table, matrix = tmp_path / "other.parquet", tmp_path / "other.npy"
    pq.write_table(pa.table({"vector": [[1.0]]}), table)
    np.save(matrix, np.eye(2))
    for path in (table, matrix):
        with pytest.raises(UsageError, match="does not say which model made its vectors"):
            open_vectors(str(path))


@pytest.mark.parametrize(
    ("name", "sentence"),
    [("no.parquet", "there is no file"), ("x.jsonl", "neither .parquet nor .npy"), ("x.parquet", "cannot be read")],
)
def test_what_is_no_output_of_vectors_is_told(tmp_path: Path, name: str, sentence: str) -> None:
    (tmp_path / "x.jsonl").write_text("{}")
    (tmp_path / "x.parquet").write_text("{}")
    with pytest.raises(UsageError, match=sentence):
        open_vectors(str(tmp_path / name))


def test_a_matrix_that_was_cut_to_nothing_is_told(tmp_path: Path) -> None:
    out = tmp_path / "out.npy"
    out.touch()
    origin = Origin(model="m", model_hash="", encoder_hash="", dtype="float32", dimensions=2, rows=3)
    origin_file(str(out)).write_bytes(origin.as_json())
    with pytest.raises(UsageError, match="cannot be read as a NumPy matrix"):
        open_vectors(str(out))


def test_a_matrix_that_does_not_fit_what_stands_beside_it_is_refused(tmp_path: Path) -> None:
    out = str(tmp_path / "out.npy")
    np.save(out, np.eye(2, dtype=np.float32))
    about = Origin(model="m", model_hash="", encoder_hash="", dtype="float32", dimensions=2, rows=3)
    origin_file(out).write_bytes(about.as_json())
    with pytest.raises(UsageError, match="is not the matrix"):
        open_vectors(out)
    origin_file(out).write_bytes(replace(about, rows=2).as_json())
    ids_file(out).write_text('{"id": "a"}\n')
    with pytest.raises(UsageError, match="does not tell whose the vectors are"):
        open_vectors(out).about([1])


def changed(folder: Path) -> None:
    pooling = {"word_embedding_dimension": 8, "pooling_mode_max_tokens": True, "pooling_mode_mean_tokens": False}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))


@pytest.mark.parametrize(
    ("model_hash", "change", "right"),
    [("ab", lambda _folder: None, True), ("cd", lambda _folder: None, False), ("ab", changed, False)],
)
def test_the_model_must_be_the_one_that_made_the_vectors(
    tmp_path: Path, model_hash: str, change: Callable[[Path], None], right: bool
) -> None:
    folder = bare_embedder(tmp_path / "m")
    origin = Origin(
        model="m", model_hash="ab", encoder_hash=read_encoder(folder).hash, dtype="float32", dimensions=8, rows=1
    )
    change(folder)
    if right:
        check_model(folder, model_hash, origin)
    else:
        with pytest.raises(ModelError, match=r"were made by m, and .* is another model or was changed since"):
            check_model(folder, model_hash, origin)


def test_a_model_that_is_gone_is_told_with_what_to_do(written: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["search", str(written), "query"]) == 1
    assert "-m says where it is now" in capsys.readouterr().err


def test_an_empty_query_is_a_usage_error(written: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["search", str(written), " "]) == 2
    assert capsys.readouterr().err == "fleet: the query is empty: give a text, in quotes\n"


def test_a_neighbour_is_told_on_one_line() -> None:
    piece = {"score": 0.51239, "id": "a", "chunk": 1, "start": 5, "end": 9, "tokens": 3, "truncated": False}
    assert line(piece) == "0.5124  a[5:9]"
    assert line({"score": 1.0, "id": "b", "text": "one\n" * 40}) == f"1.0000  b  text={('one ' * 40)[:57]}..."
