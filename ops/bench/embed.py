"""Measures embedding: ours against the same encoder unsorted at batch 32, and against mlx-embeddings at its best.

    python -m worker.blas python -m ops.bench.embed [mixed|long] [--texts N] [--other PYTHON] [--json]
    python -m ops.bench.embed [mixed|long] --shape minilm|qwen3-0.6b     random weights of a real shape, for a GPU
    python -m ops.bench.embed [mixed|long] --end-to-end [--other PYTHON]     from a file of texts to Parquet

`mixed`: lengths of p50 40 and at most 250 tokens. `long`: 230 to 250 tokens. Texts are random ids, made before the
clock starts. Sides take turns; the first round is dropped; a spread over 10 % is said beside the figure. CPU seconds
stand beside wall seconds: on a machine that does something else too they are the fairer figure. The limit is the time
of the products alone, on the shapes of our batches. With --end-to-end the texts are pieces of speeches in a JSONL file,
our side is a whole `fleet run embed` in a new state folder, and the others are scripts that read, tokenise, encode and
write Parquet; it has MiniLM, at --texts 2000 or so the start is a small part.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from fleet.job import Embedding, Sampling
from ops.bench.embedding import end_to_end
from ops.bench.embedding.models import SHAPES, Subject, minilm, minilm_folder, random_subject
from ops.bench.embedding.rival import Other
from ops.bench.embedding.taken import Taken, steady, summary, table, timed
from ops.bench.embedding.texts import lengths
from worker.batching import ORDINARY, Row
from worker.embedder import Embedder
from worker.embedding_batches import Batches
from worker.embedding_engine import CPU_TOKENS, GPU_TOKENS
from worker.knee import Curve
from worker.token_budget import TokenBudget
from worker.token_gauge import TokenGauge

UNSORTED_BATCH = 32


def ours(embedder: Embedder, texts: Sequence[list[int]], budget_tokens: int) -> Batches:
    """Embeds texts as the engine does."""
    budget = TokenBudget(provisional=budget_tokens, most=1 << 30, curve=Curve(bucket_tokens=64))
    batches = Batches(embedder, budget)
    for at, tokens in enumerate(texts):
        batches.put(
            Row(
                id=at,
                key=b"",
                tokens=tokens,
                max_tokens=0,
                sampling=Sampling(embedding=Embedding()),
                lane=ORDINARY,
                charged_tokens=len(tokens),
            )
        )
    done = 0
    while done < len(texts):
        if batches.due(started=batches.start(1 << 20, lambda _: None)):
            done += len(batches.finish())
    return batches


def unsorted(embedder: Embedder, texts: Sequence[list[int]]) -> None:
    """The same encoder, texts as they come, one batch after another."""
    for at in range(0, len(texts), UNSORTED_BATCH):
        embedder.finish(embedder.start(texts[at : at + UNSORTED_BATCH]))


def limit(subject: Subject, texts: Sequence[list[int]], budget_tokens: int) -> Taken:
    """The products alone, for batches like ours."""
    in_order = sorted(map(len, texts), reverse=True)
    wall = cpu = 0.0
    while in_order:
        rows = min(max(1, budget_tokens // in_order[0]), len(in_order))
        product = subject.products(rows, in_order[0])
        product()
        taken = timed(product)
        wall, cpu = wall + subject.layers * taken[0], cpu + subject.layers * taken[1]
        in_order = in_order[rows:]
    return wall, cpu


def knee(subject: Subject) -> TokenBudget:
    """The budget as the engine measures it."""
    on_cpu = mx.default_device().type == mx.DeviceType.cpu
    budget = TokenBudget(provisional=CPU_TOKENS if on_cpu else GPU_TOKENS, most=1 << 20, curve=Curve(bucket_tokens=64))
    gauge = TokenGauge(subject.embedder, vocabulary=subject.vocabulary, max_seq_tokens=256)
    while (tokens := budget.next_tokens()) is not None:
        budget.sampled(gauge.sample(tokens))
    return budget


def measure(args: argparse.Namespace, subject: Subject, texts: list[list[int]], folder: Path) -> dict[str, Any]:
    """All sides in turns."""
    budget = knee(subject)
    sides: dict[str, Callable[[], Taken]] = {
        "ours": lambda: timed(lambda: ours(subject.embedder, texts, budget.tokens)),
        f"unsorted, batch {UNSORTED_BATCH}": lambda: timed(lambda: unsorted(subject.embedder, texts)),
        "limit": lambda: limit(subject, texts, budget.tokens),
    }
    if args.other:
        other = Other(args.other, subject.folder, texts, folder)
        cell = other.best()
        sides[f"mlx-embeddings, {cell[1]}, batch {cell[0]}"] = lambda: other.run(*cell)
    taken: dict[str, list[Taken]] = {name: [] for name in sides}
    for _ in range(args.rounds + 1):
        for name, side in sides.items():
            taken[name].append(side())
    tokens = sum(map(len, texts))
    figures = ours(subject.embedder, texts, budget.tokens).figures
    return {
        "kind": args.kind,
        "texts": len(texts),
        "tokens": tokens,
        "device": str(mx.default_device()),
        "budget_tokens": budget.tokens,
        "knee": {sample.rows: round(sample.tps) for sample in budget.curve.samples},
        "padding": figures.padding_tokens / tokens,
        "sides": {name: summary(rounds, len(texts), tokens) for name, rounds in taken.items()},
    }


def told(result: dict[str, Any]) -> str:
    """The result as a person reads it."""
    return "\n".join(
        [
            f"{result['kind']}: {result['texts']} texts, {result['tokens']:,} tokens, {result['device']}",
            f"budget {result['budget_tokens']} tokens of {result['knee']}, padding {result['padding']:.1%}",
            *table(result["sides"]),
        ]
    )


def from_file_to_file(args: argparse.Namespace) -> int:
    """Prints figures of whole runs; 1 when ours spread too far to be reported."""
    with tempfile.TemporaryDirectory() as folder:
        result = end_to_end.measure(
            minilm_folder(),
            Path(folder),
            kind=args.kind,
            count=args.texts,
            rounds=args.rounds,
            other=args.other,
            unsorted_batch=UNSORTED_BATCH,
        )
    print(json.dumps(result) if args.json else end_to_end.told(result), flush=True)
    return int(not end_to_end.reportable(result))


def main() -> int:
    """Prints figures; 1 when ours spreads too far to be reported."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", nargs="?", choices=("mixed", "long"), default="mixed")
    parser.add_argument("--texts", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--other", metavar="PYTHON", help="an interpreter that has mlx-embeddings")
    parser.add_argument("--shape", choices=SHAPES, help="random weights of this shape instead of MiniLM's")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--end-to-end", action="store_true", help="from a file of texts to Parquet, by MiniLM")
    args = parser.parse_args()
    if args.end_to_end:
        return from_file_to_file(args)
    random = np.random.default_rng(0)
    subject = random_subject(args.shape) if args.shape else minilm()
    texts = [
        random.integers(1000, min(30_000, subject.vocabulary), length).tolist()
        for length in lengths(args.kind, args.texts, random)
    ]
    with tempfile.TemporaryDirectory() as folder:
        result = measure(args, subject, texts, Path(folder))
    print(json.dumps(result) if args.json else told(result), flush=True)
    return int(not steady(result["sides"]["ours"]))


if __name__ == "__main__":
    sys.exit(main())
