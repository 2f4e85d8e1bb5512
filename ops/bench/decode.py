"""Measures batched generation: ours against mlx-lm's `batch_generate` at its best, in turns.

    python -m worker.blas python -m ops.bench.decode copies     a workload where copies of keys and values dominate
    python -m worker.blas python -m ops.bench.decode prefix     1,000 of 1,300 prompt tokens shared, with and without
    python -m worker.blas python -m ops.bench.decode model F    rows of mixed lengths on the model in folder F

Sides take turns; the first round is dropped. Where others use the machine too, set OPENBLAS_NUM_THREADS=1 and read
the processor seconds, which decide here; a side that spreads over 10 % is marked. JSON on stdout.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
from mlx_lm.generate import batch_generate
from mlx_lm.models import llama

from worker.generation.batch import Ahead, Generation
from worker.generation.prefill import compute_prefix
from worker.generation.rows import GenRow

#: A side whose rounds differ by more than this is not to be trusted.
SPREAD_LIMIT = 0.10


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A prompt and how many tokens it gets."""

    tokens: list[int]
    new: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One timed run."""

    seconds: float
    #: processor seconds, all threads: steadier than time on a machine that others use
    cpu_s: float
    peak_mib: float
    tokens: list[list[int]]
    note: str = ""


class NoTokenizer:
    """What `batch_generate` wants of a tokenizer when no token ends a row and no text is read."""

    eos_token_ids: frozenset[int] = frozenset()

    def decode(self, tokens: Sequence[int]) -> str:
        del tokens
        return ""


def timed(work: Callable[[], tuple[list[list[int]], str]]) -> Run:
    """Runs `work` and takes its time and the memory MLX held at most."""
    mx.synchronize()
    mx.clear_cache()
    mx.reset_peak_memory()
    start, start_cpu = time.perf_counter(), time.process_time()
    tokens, note = work()
    mx.synchronize()
    return Run(
        seconds=time.perf_counter() - start,
        cpu_s=time.process_time() - start_cpu,
        peak_mib=mx.get_peak_memory() / 2**20,
        tokens=tokens,
        note=note,
    )


def stock(model: Any, asks: Sequence[Ask], *, cap: int, rows: int, step: int) -> Run:
    """mlx-lm's own loop."""

    def work() -> tuple[list[list[int]], str]:
        answer = batch_generate(
            model,
            NoTokenizer(),
            [list(ask.tokens) for ask in asks],
            max_tokens=[ask.new for ask in asks],
            return_token_ids=True,
            completion_batch_size=cap,
            prefill_batch_size=rows,
            prefill_step_size=step,
        )
        return answer.token_ids, ""

    return timed(work)


def ours(
    model: Any,
    asks: Sequence[Ask],
    *,
    cap: int,
    rows: int,
    step: int,
    ahead: Ahead = Ahead.NOTHING,
    prefix: Sequence[int] = (),
) -> Run:
    """Our loop: rows join as soon as `rows` of them fit under the cap."""

    def work() -> tuple[list[list[int]], str]:
        shared = compute_prefix(model, prefix, tokens_per_eval=step) if prefix else None
        generation = Generation(model, prefill_rows=rows, prefill_tokens=step, eos=frozenset(), slots=cap, ahead=ahead)
        made: list[list[int]] = [[] for _ in asks]
        waiting = list(range(len(asks)))[::-1]
        running = 0
        while waiting or running:
            if waiting and (cap - running >= min(rows, len(waiting)) or not running):
                chosen = [waiting.pop() for _ in range(min(cap - running, len(waiting)))]
                generation.insert(
                    [GenRow(id=i, tokens=asks[i].tokens, max_tokens=asks[i].new, prefix=shared) for i in chosen]
                )
                running += len(chosen)
            for i, token, finish in generation.step():
                made[i].append(token)
                running -= finish is not None
        counters = generation.counters
        note = f"prefill {counters.prefill_s:.2f} s, decode {counters.decode_s:.2f} s, {counters.steps} steps, "
        note += f"{counters.step_rows / counters.steps:.1f} rows a step, {counters.moved_rows} moved"
        return made, note

    return timed(work)


def compare(sides: dict[str, Callable[[], Run]], *, rounds: int) -> dict[str, Any]:
    """Runs the sides in turns, drops the first round, and gives each one's median, spread and peak."""
    runs: dict[str, list[Run]] = {name: [] for name in sides}
    for turn in range(rounds + 1):
        for name, side in sides.items():
            run = side()
            print(
                f"round {turn} {name}: {run.cpu_s:.2f} s of processor, {run.seconds:.2f} s passed, ",
                end="",
                file=sys.stderr,
            )
            print(f"{run.peak_mib:.0f} MiB {run.note}", file=sys.stderr)
            if turn:
                runs[name].append(run)
    return {name: _summary(done) for name, done in runs.items()} | {"equal": _equal(runs)}


def _summary(runs: Sequence[Run]) -> dict[str, Any]:
    cpu_s, spread = _median([run.cpu_s for run in runs])
    seconds, wall_spread = _median([run.seconds for run in runs])
    return {
        "cpu_s": round(cpu_s, 2),
        "spread": round(spread, 3),
        "trusted": spread <= SPREAD_LIMIT,
        "wall_s": round(seconds, 2),
        "wall_spread": round(wall_spread, 3),
        "new_tokens": sum(map(len, runs[0].tokens)),
        "peak_mib": round(max(run.peak_mib for run in runs)),
    }


def _median(values: Sequence[float]) -> tuple[float, float]:
    """The median, and the range as a share of it."""
    median = statistics.median(values)
    return median, (max(values) - min(values)) / median if median else 0.0  # the limit takes no time of its own


def _equal(runs: dict[str, list[Run]]) -> str:
    """How many rows have the same tokens on all sides."""
    sides = [done[0].tokens for done in runs.values()]
    same = sum(all(rows[i] == sides[0][i] for rows in sides) for i in range(len(sides[0])))
    return f"{same}/{len(sides[0])}"


def best_stock(model: Any, asks: Sequence[Ask], *, caps: Sequence[int], steps: Sequence[int]) -> dict[str, Any]:
    """The fastest cell of a grid over order, cap, prefill batch and prefill step."""
    cells = itertools.product((False, True), caps, (1, 4, 16), steps)
    timings = {}
    for longest_first, cap, rows, step in cells:
        order = ordered(asks, longest_first=longest_first)
        run = stock(model, order, cap=cap, rows=rows, step=step)
        timings[(longest_first, cap, rows, step)] = run.cpu_s
        print(
            f"grid {longest_first=} {cap=} {rows=} {step=}: {run.cpu_s:.2f} s of processor, {run.peak_mib:.0f} MiB",
            file=sys.stderr,
        )
    longest_first, cap, rows, step = min(timings, key=lambda cell: timings[cell])
    return {"longest_first": longest_first, "cap": cap, "rows": rows, "step": step}


def ordered(asks: Sequence[Ask], *, longest_first: bool) -> list[Ask]:
    """The asks as given, or longest first."""
    return sorted(asks, key=lambda ask: -(len(ask.tokens) + ask.new)) if longest_first else list(asks)


def mixed(count: int, prompt: tuple[int, int], new: tuple[int, int], *, vocabulary: int, seed: int = 7) -> list[Ask]:
    """Random prompts with lengths drawn evenly from the two ranges."""
    draw = random.Random(seed)
    return [
        Ask(tokens=[draw.randrange(vocabulary) for _ in range(draw.randint(*prompt))], new=draw.randint(*new))
        for _ in range(count)
    ]


def wide_model() -> Any:
    """Tiny weights, wide keys and values: 32 KiB a token in float32, in few layers and heads: prompts cost little."""
    mx.random.seed(0)
    model = llama.Model(
        llama.ModelArgs.from_dict(
            {
                "model_type": "llama",
                "hidden_size": 64,
                "num_hidden_layers": 2,
                "intermediate_size": 64,
                "num_attention_heads": 4,
                "num_key_value_heads": 4,
                "head_dim": 512,
                "rms_norm_eps": 1e-5,
                "vocab_size": 512,
                "tie_word_embeddings": False,
            }
        )
    )
    mx.eval(model.parameters())
    return model


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workload", choices=["copies", "prefix", "model"])
    parser.add_argument("folder", nargs="?", help="model folder")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", type=int, default=96)
    parser.add_argument("--cap", type=int, default=16)
    args = parser.parse_args()
    print(json.dumps({"copies": copies, "prefix": prefix, "model": on_model}[args.workload](args), indent=1))
    return 0


def copies(args: argparse.Namespace) -> dict[str, Any]:
    """500-700 token prompts, 10-60 new tokens, wide keys and values."""
    model = wide_model()
    return _against_stock(model, mixed(args.rows, (500, 700), (10, 60), vocabulary=512), args, rows=1, step=256)


def on_model(args: argparse.Namespace) -> dict[str, Any]:
    """Mixed lengths on a real model."""
    from mlx_lm import load

    model, tokenizer = load(args.folder)
    asks = mixed(args.rows, (30, 400), (64, 64), vocabulary=tokenizer.vocab_size)
    return _against_stock(model, asks, args, rows=1, step=128)


def _against_stock(
    model: Any, asks: Sequence[Ask], args: argparse.Namespace, *, rows: int, step: int
) -> dict[str, Any]:
    best = best_stock(model, asks, caps=[args.cap], steps=(128, 512))
    asks = ordered(asks, longest_first=best.pop("longest_first"))
    sides = {
        "stock": lambda: stock(model, asks, **best),
        "ours": lambda: ours(model, asks, cap=args.cap, rows=rows, step=step),
    }
    figures = compare(sides, rounds=args.rounds)
    speedup = figures["stock"]["cpu_s"] / figures["ours"]["cpu_s"]
    return {"best_stock": best, **figures, "speedup": round(speedup, 2)}


def prefix(args: argparse.Namespace) -> dict[str, Any]:
    """1,000 shared tokens, 300 of each row's own, 64 new ones."""
    model, vocabulary = wide_model(), 512
    if args.folder:
        from mlx_lm import load

        model, tokenizer = load(args.folder)
        vocabulary = tokenizer.vocab_size
    shared = mixed(1, (1000, 1000), (1, 1), vocabulary=vocabulary, seed=1)[0].tokens
    asks = mixed(args.rows, (300, 300), (64, 64), vocabulary=vocabulary)
    whole = [Ask(tokens=shared + ask.tokens, new=ask.new) for ask in asks]
    sides = {
        "without": lambda: ours(model, whole, cap=args.cap, rows=1, step=256),
        "with": lambda: ours(model, asks, cap=args.cap, rows=1, step=256, prefix=shared),
    }
    figures = compare(sides, rounds=args.rounds)
    return {**figures, "speedup": round(figures["without"]["cpu_s"] / figures["with"]["cpu_s"], 2)}


if __name__ == "__main__":
    sys.exit(main())
