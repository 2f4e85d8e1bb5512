"""`fleet run embed` with MiniLM, for real: what comes out is right, and means something."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import load_file

from tests.encoder_reference import hidden_states, pooled
from tests.minilm import minilm, minilm_tokens
from tests.runner import Fleet, read_lines

pytestmark = pytest.mark.mlx

TEXTS = {
    "food": "A man is eating a piece of bread.",
    "music": "A woman is playing the violin.",
    "animal": "A cheetah runs behind its prey.",
    "emoji": "Naïve café \N{GRINNING FACE}\N{PILE OF POO} 東京",
    "code": "def add(a, b): return a + b",
    **{f"n{number}": f"The {number}th senate met and voted on law {number * 7}." for number in range(20)},
    "long": " ".join(f"Paragraph {number} tells of the river and of the people beside it." for number in range(60)),
}


class Run:
    """One run over TEXTS, with whatever flags."""

    def __init__(self, folder: Path, *flags: str) -> None:
        folder.mkdir(exist_ok=True)
        self.fleet = Fleet(folder)
        self.out = folder / "out.parquet"
        backlog = folder / "in.jsonl"
        backlog.write_text("".join(json.dumps({"id": i, "text": text}) + "\n" for i, text in TEXTS.items()))
        self.fleet.run("run", "embed", backlog, "-m", minilm(), "-o", self.out, *flags).expect(0)

    def rows(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = pq.read_table(self.out).to_pylist()
        return rows


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return Run(tmp_path_factory.mktemp("run"))


def reference(text: str) -> np.ndarray:
    weights = load_file(minilm() / "model.safetensors")
    config = json.loads((minilm() / "config.json").read_text())
    return pooled(hidden_states(weights, config, minilm_tokens(text)), "mean")


def test_the_texts_come_back_in_order_and_the_long_one_in_pieces(run: Run) -> None:
    rows = run.rows()
    assert list(dict.fromkeys(row["id"] for row in rows)) == list(TEXTS)
    pieces = [row for row in rows if row["id"] == "long"]
    assert len(pieces) > 2
    assert all(row["tokens"] <= 256 for row in rows)
    assert (pieces[0]["start"], pieces[-1]["end"]) == (0, len(TEXTS["long"]))
    run.fleet.validate()


@pytest.mark.parametrize("name", ["food", "emoji", "long"])
def test_a_vector_is_that_of_an_independent_float64_computation(run: Run, name: str) -> None:
    row = [row for row in run.rows() if row["id"] == name][-1]
    text = TEXTS[name] if row["start"] is None else TEXTS[name][row["start"] : row["end"]]
    assert np.abs(np.array(row["vector"]) - reference(text)).max() <= 1e-6


def test_float16_is_nearly_float32(run: Run, tmp_path: Path) -> None:
    half = Run(tmp_path / "half", "--dtype", "float16")
    whole = np.array([row["vector"] for row in run.rows()])
    assert pq.read_schema(half.out).field("vector").type.value_type == "halffloat"
    cosines = [float(a @ np.array(b["vector"])) for a, b in zip(whole, half.rows(), strict=True)]
    assert min(cosines) >= 0.9999


@pytest.mark.parametrize(("query", "nearest"), [("Someone has a meal", "food"), ("a fast wild animal", "animal")])
def test_a_search_finds_what_means_the_same(run: Run, query: str, nearest: str) -> None:
    found = json.loads(run.fleet.run("search", run.out, query, "-k", "2", "--json").expect(0).out)
    assert found[0]["id"] == nearest
    assert found[0]["score"] > found[1]["score"] + 0.1


def test_openai_lines_get_openais_answers(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path)
    backlog = tmp_path / "in.jsonl"
    line = {"custom_id": "a", "method": "POST", "url": "/v1/embeddings"}
    backlog.write_text(json.dumps({**line, "body": {"model": "m", "input": [TEXTS["food"], TEXTS["code"]]}}) + "\n")
    fleet.run("run", "embed", backlog, "-m", minilm(), "-o", fleet.out).expect(0)
    body = read_lines(fleet.out)[0]["response"]["body"]
    assert [entry["index"] for entry in body["data"]] == [0, 1]
    assert np.abs(np.array(body["data"][1]["embedding"]) - reference(TEXTS["code"])).max() <= 1e-6
    assert body["usage"]["total_tokens"] == sum(len(minilm_tokens(TEXTS[name])) for name in ("food", "code"))
