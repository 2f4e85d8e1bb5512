"""From a file of texts to a file of vectors: a whole `fleet run embed` against scripts that do the same.

Every side is timed from the start of its processes to their end, and once more in each round with a single text: what
that takes is its start, loading of the model included, and is told apart.
"""

from __future__ import annotations

import os
import resource
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from tokenizers import Tokenizer

from ops.bench.embedding.rival import Other
from ops.bench.embedding.taken import Taken, steady, summary, table
from ops.bench.embedding.texts import lengths, write_texts
from worker.blas import engine_environment

ROOT = Path(__file__).parents[3]
#: All sides get one thread, whatever the machine has.
THREADS = {"OPENBLAS_NUM_THREADS": "1"}
#: Texts on which the other library's best batch and order are looked for.
GRID_TEXTS = 100
#: Embeds the texts of a file into another file.
Side = Callable[[Path, Path], Taken]


def measure(
    model: Path, folder: Path, *, kind: str, count: int, rounds: int, other: str | None, unsorted_batch: int
) -> dict[str, Any]:
    """All sides in turns, in `folder`; `other` is an interpreter that has mlx-embeddings."""
    random = np.random.default_rng(0)
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    many, one = folder / "texts.jsonl", folder / "one.jsonl"
    tokens = write_texts(many, lengths(kind, count, random), tokenizer, random)
    one.write_text(many.read_text(encoding="utf-8").partition("\n")[0] + "\n", encoding="utf-8")
    sides: dict[str, Side] = {
        "ours": _fleet(model, folder),
        f"unsorted, batch {unsorted_batch}": _script(sys.executable, "ours", model, unsorted_batch, "unsorted"),
    }
    if other:
        size, order = _best(other, model, tokens[:GRID_TEXTS], folder)
        sides[f"mlx-embeddings, {order}, batch {size}"] = _script(other, "mlx-embeddings", model, size, order)
    whole: dict[str, list[Taken]] = {name: [] for name in sides}
    start: dict[str, list[Taken]] = {name: [] for name in sides}
    files = {name: folder / f"{at}.parquet" for at, name in enumerate(sides)}
    for _ in range(rounds + 1):
        for name, side in sides.items():
            start[name].append(side(one, folder / "one.parquet"))
            whole[name].append(side(many, files[name]))
    total = sum(map(len, tokens))
    return {
        "kind": kind,
        "texts": count,
        "tokens": total,
        "median_tokens": statistics.median(map(len, tokens)),
        "whole": {name: summary(taken, count, total) for name, taken in whole.items()},
        "start_s": {name: statistics.median(wall for wall, _ in taken[1:]) for name, taken in start.items()},
        "without_start": {name: summary(_without(whole[name], start[name]), count, total) for name in sides},
        "least_cosine": {name: _least_cosine(files["ours"], file) for name, file in files.items()},
    }


def told(result: dict[str, Any]) -> str:
    """The result as a person reads it."""
    starts = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in result["start_s"].items())
    cosines = ", ".join(f"{name} {cosine:.7f}" for name, cosine in result["least_cosine"].items() if name != "ours")
    return "\n".join(
        [
            f"{result['kind']}, file to Parquet: {result['texts']:,} texts, {result['tokens']:,} tokens, "
            f"{result['median_tokens']:.0f} in the middle one",
            *table(result["whole"]),
            f"the start, of this (one text): {starts}",
            "without it:",
            *table(result["without_start"]),
            f"least cosine to our vectors: {cosines}",
        ]
    )


def reportable(result: dict[str, Any]) -> bool:
    """Whether our own rounds are alike enough."""
    return steady(result["whole"]["ours"])


def _fleet(model: Path, folder: Path) -> Side:
    """`fleet run embed` as a person calls it, in a state folder that knows nothing yet."""

    def run(texts: Path, out: Path) -> Taken:
        state = folder / "state"
        shutil.rmtree(state, ignore_errors=True)
        out.unlink(missing_ok=True)
        command = [sys.executable, "-m", "fleet", "run", "embed", str(texts), "-m", str(model), "-o", str(out)]
        return _timed([*command, "--state-dir", str(state), "--json"], {**os.environ, **THREADS})

    return run


def _script(python: str, encoder: str, model: Path, batch: int, order: str) -> Side:
    """`from_file.py` under `python`."""
    script = Path(__file__).with_name("from_file.py")
    environment = engine_environment({**os.environ, **THREADS, "PYTHONPATH": str(ROOT)})

    def run(texts: Path, out: Path) -> Taken:
        return _timed([python, str(script), encoder, str(model), str(texts), str(out), str(batch), order], environment)

    return run


def _best(python: str, model: Path, texts: Sequence[list[int]], folder: Path) -> tuple[int, str]:
    other = Other(python, model, texts, folder)
    try:
        return other.best()
    finally:
        other.end()


def _timed(command: Sequence[str], environment: Mapping[str, str]) -> Taken:
    """Seconds from a command's start to its end, and CPU seconds of it and all that it started."""
    began, before = time.perf_counter(), _children_cpu_s()
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    taken = time.perf_counter() - began, _children_cpu_s() - before
    if ended.returncode:
        raise SystemExit(f"{command[:4]} ended with {ended.returncode}: {ended.stderr[-2000:]}")
    return taken


def _children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _without(whole: Sequence[Taken], start: Sequence[Taken]) -> list[Taken]:
    return [(wall - less_wall, cpu - less_cpu) for (wall, cpu), (less_wall, less_cpu) in zip(whole, start, strict=True)]


def _least_cosine(ours: Path, others: Path) -> float:
    """The least cosine between the two files' vectors; SystemExit when they hold other texts or another order."""
    mine, theirs = (pq.read_table(path, columns=["id", "vector"]) for path in (ours, others))
    if mine["id"].to_pylist() != theirs["id"].to_pylist():
        raise SystemExit(f"{others} holds other texts than {ours}")
    first, second = (_matrix(table["vector"]) for table in (mine, theirs))
    return float((first * second).sum(axis=1).min())


def _matrix(column: Any) -> np.ndarray:
    flat: np.ndarray = column.combine_chunks().flatten().to_numpy(zero_copy_only=False)
    return flat.reshape(len(column), -1).astype(np.float64)
