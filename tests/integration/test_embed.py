"""`fleet run embed` and `fleet search` through every process, with an engine that makes up its vectors."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from tests.embedders import bare_embedder
from tests.runner import Fleet, read_lines, wait_until

#: Every seventh is too long for the model; its pieces are partly equal.
TEXTS = [f"the text number {number} is short" if number % 7 else f"long {number} " * 20 for number in range(60)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bare_embedder(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    return Fleet(tmp_path, fake=True)


def write_texts(path: Path, texts: list[str]) -> Path:
    lines = [json.dumps({"id": f"t{number}", "text": text, "page": number}) for number, text in enumerate(texts)]
    path.write_text("".join(line + "\n" for line in lines))
    return path


class Finished:
    """A run that ended well, and its output."""

    def __init__(self, folder: Path, model: Path) -> None:
        self.fleet = Fleet(folder, fake=True)
        self.out = folder / "out.parquet"
        backlog = write_texts(folder / "in.jsonl", TEXTS)
        self.command = ["run", "embed", backlog, "-m", model, "-o", self.out, "--json"]
        self.report: dict[str, Any] = json.loads(self.fleet.run(*self.command).expect(0).out)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Finished:
    return Finished(tmp_path_factory.mktemp("finished"), model)


def test_every_text_has_its_vectors_in_input_order(finished: Finished) -> None:
    table = pq.read_table(finished.out)
    pieces = table.drop_columns("vector").to_pylist()
    assert list(dict.fromkeys(piece["id"] for piece in pieces)) == [f"t{number}" for number in range(60)]
    assert all(piece["page"] == int(piece["id"][1:]) for piece in pieces)
    assert {piece["id"] for piece in pieces if piece["chunk"]} == {f"t{number}" for number in range(0, 60, 7)}
    lengths = np.linalg.norm(np.array(table.column("vector").to_pylist()), axis=1)
    assert np.allclose(lengths, 1, atol=1e-6)
    finished.fleet.validate()


def test_the_report_tells_texts_and_tokens_a_second(finished: Finished) -> None:
    report = finished.report
    assert (report["done"], report["embeds"], report["output_tokens"]) == (60, True, 0)
    assert report["computed_rows"] == len(set(finished.fleet.computed())) == len(finished.fleet.computed())
    assert report["computed_rows"] + report["reused_rows"] == pq.read_metadata(finished.out).num_rows
    assert report["prompt_tps"] > 0
    assert report["rows_per_s"] > 0
    assert finished.fleet.pids() == []


def test_a_rerun_computes_nothing_and_writes_the_same(finished: Finished) -> None:
    before = finished.out.read_bytes()
    assert json.loads(finished.fleet.run(*finished.command).expect(0).out)["computed_rows"] == 0
    assert finished.out.read_bytes() == before


def test_the_vectors_can_be_written_again_in_other_forms(finished: Finished, tmp_path: Path) -> None:
    matrix, lines = tmp_path / "again.npy", tmp_path / "again.jsonl"
    for out in (matrix, lines):
        finished.fleet.run("results", "1", "-o", out).expect(0)
    vectors = pq.read_table(finished.out).column("vector").to_pylist()
    assert np.load(matrix).tolist() == vectors
    flat = read_lines(lines)
    assert [one for line in flat for one in line.get("embeddings", [line.get("embedding")])] == vectors


def test_a_search_finds_the_text_itself_first(finished: Finished) -> None:
    found = json.loads(finished.fleet.run("search", finished.out, TEXTS[11], "-k", "3", "--json").expect(0).out)
    assert len(found) == 3
    assert (found[0]["id"], found[0]["page"], found[0]["score"]) == ("t11", 11, pytest.approx(1.0, abs=1e-6))


def test_a_query_that_cannot_be_embedded_says_why(finished: Finished) -> None:
    ended = finished.fleet.run("search", finished.out, "x" * 99).expect(2)
    assert "fleet: the query cannot be embedded: the text has 101 tokens, expected at most 32" in ended.err


def test_after_a_kill_the_same_command_computes_nothing_that_was_recorded(
    fleet: Fleet, model: Path, tmp_path: Path
) -> None:
    backlog = write_texts(tmp_path / "in.jsonl", TEXTS)
    command = ["run", "embed", backlog, "-m", model, "-o", fleet.out, "--batch", "4"]
    process = fleet.start(*command, env={"FAKE_STEP_S": "0.1"})
    wait_until(lambda: fleet.counts().done >= 10, story="ten texts recorded")
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    done = fleet.counts().done
    assert 10 <= done < 60
    known = set(fleet.computed())

    fleet.run(*command).expect(0)
    assert [line["id"] for line in read_lines(fleet.out)] == [f"t{number}" for number in range(60)]
    again = {key for key in fleet.computed() if fleet.computed().count(key) > 1}
    assert len(again) <= len(known) - done  # at most those whose results had not been recorded
    fleet.validate()


def test_equal_texts_are_computed_once_and_one_without_tokens_fails_alone(
    fleet: Fleet, model: Path, tmp_path: Path
) -> None:
    backlog = write_texts(tmp_path / "in.jsonl", ["the same text"] * 30 + ["\u200b", "another"])
    out = tmp_path / "out.npy"
    fleet.run("run", "embed", backlog, "-m", model, "-o", out, "--dtype", "float16").expect(3)
    matrix = np.load(out)
    assert (matrix.dtype, matrix.shape, len(fleet.computed())) == (np.float16, (31, 8), 2)
    assert (len(np.unique(matrix[:30], axis=0)), len(np.unique(matrix, axis=0))) == (1, 2)
    ids = [line["id"] for line in read_lines(tmp_path / "out.npy.ids.jsonl")]
    assert ids == [f"t{number}" for number in range(32) if number != 30]
    (error,) = read_lines(tmp_path / "out.npy.errors.jsonl")
    assert error == {
        "id": "t30",
        "source": f"{backlog}:31",
        "error": "the text has no tokens in this model: nothing to embed",
    }


def test_a_matrix_of_answers_is_refused_before_any_work(fleet: Fleet, model: Path, tmp_path: Path) -> None:
    backlog = write_texts(tmp_path / "in.jsonl", TEXTS)
    ended = fleet.run("run", "generate", backlog, "-m", model, "-o", tmp_path / "out.npy").expect(2)
    assert "holds vectors, and generate makes none" in ended.err
    assert not fleet.state.root.exists()
