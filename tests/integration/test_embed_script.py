"""The scripts that embedding is measured against give the vectors of `fleet run embed`, text by text."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer

from ops.bench.embedding.texts import lengths, write_texts
from tests.minilm import minilm
from tests.runner import ROOT, Fleet
from worker.blas import engine_environment

SCRIPT = ROOT / "ops" / "bench" / "embedding" / "from_file.py"


def tokenizer() -> Tokenizer:
    made = Tokenizer.from_file(str(minilm() / "tokenizer.json"))
    made.no_truncation()
    made.no_padding()
    return made


def vectors(out: Path) -> tuple[list[str], np.ndarray]:
    table = pq.read_table(out)
    return table.column("id").to_pylist(), np.array(table.column("vector").to_pylist())


@pytest.mark.mlx
def test_a_script_gives_the_vectors_of_a_run_in_either_order(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    texts = tmp_path / "texts.jsonl"
    write_texts(texts, lengths("mixed", 12, random), tokenizer(), random)
    out = tmp_path / "out.parquet"
    Fleet(tmp_path).run("run", "embed", texts, "-m", minilm(), "-o", out).expect(0)
    ids, expected = vectors(out)
    for order in ("sorted", "unsorted"):
        made = tmp_path / f"{order}.parquet"
        command = [sys.executable, str(SCRIPT), "ours", str(minilm()), str(texts), str(made), "5", order]
        environment = {**engine_environment(os.environ), "PYTHONPATH": str(ROOT)}
        subprocess.run(command, env=environment, check=True, timeout=60)
        found, matrix = vectors(made)
        assert found == ids == [f"t{number}" for number in range(12)]
        assert np.abs(matrix - expected).max() <= 1e-6


@pytest.mark.parametrize(
    ("kind", "middle", "shortest", "longest"), [("mixed", (32, 48), 3, 256), ("long", (235, 245), 225, 256)]
)
def test_texts_are_unlike_and_as_long_as_asked(
    tmp_path: Path, kind: str, middle: tuple[int, int], shortest: int, longest: int
) -> None:
    random = np.random.default_rng(0)
    tokens = write_texts(tmp_path / "texts.jsonl", lengths(kind, 300, random), tokenizer(), random)
    sizes = [len(ids) for ids in tokens]
    assert middle[0] <= np.median(sizes) <= middle[1]
    assert shortest <= min(sizes) <= max(sizes) <= longest
    written = [json.loads(line) for line in (tmp_path / "texts.jsonl").read_text().splitlines()]
    assert [line["id"] for line in written] == [f"t{number}" for number in range(300)]
    assert len({line["text"] for line in written}) == 300
