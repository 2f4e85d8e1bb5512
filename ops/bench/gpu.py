"""Measures decoding on one GPU with random weights of a real shape: ours against mlx-lm's BatchGenerator, in turns.

    python -m ops.bench.gpu decode --out decode.json     batch 64: stock against ours
    python -m ops.bench.gpu knee --out knee.json         decode rates over batch sizes, bf16 and 4-bit
    python -m ops.bench.gpu backlog --out backlog.json   512 mixed rows: stock at its best, static batches, ours
    python -m ops.bench.gpu prefix --out prefix.json     1,000 of 1,300 prompt tokens shared, with and without

Weights are random, so answers mean nothing, but times are those of real ones: no token ends a row.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten, tree_map
from mlx_lm.generate import BatchGenerator, batch_generate
from mlx_lm.models import qwen3

from ops.bench.decode import Ask, ours
from worker.generation.batch import Ahead, Generation
from worker.generation.rows import GenRow

SHAPES = {
    "qwen3-8b": {
        "hidden_size": 4096,
        "num_hidden_layers": 36,
        "intermediate_size": 12288,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151936,
    },
    "tiny": {
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "intermediate_size": 128,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "vocab_size": 512,
    },
}
PROMPT_TOKENS = 512
NEW_TOKENS = 96
STEPS = 64
#: Bytes a second the H200 was seen to read.
BANDWIDTH = 4.3e12
PREFILL_TOKENS = 2048
_NO_LIMIT = 1 << 20

Prompt = tuple[list[int], int]


class NoTokenizer:
    """What `batch_generate` wants of a tokenizer when no token ends a row and no text is read."""

    eos_token_ids: frozenset[int] = frozenset()

    def decode(self, tokens: Sequence[int]) -> str:
        del tokens
        return ""


def make_model(shape: str, *, bits: int) -> Any:
    """A qwen3 of this shape, random weights in bfloat16, or quantised to `bits` with groups of 64."""
    fixed = {"model_type": "qwen3", "rms_norm_eps": 1e-6, "rope_theta": 1e6, "tie_word_embeddings": False}
    args = qwen3.ModelArgs.from_dict({**fixed, "max_position_embeddings": 40960, **SHAPES[shape]})
    model = qwen3.Model(args)
    model.update(tree_map(lambda w: (mx.random.normal(w.shape) * 0.02).astype(mx.bfloat16), model.parameters()))
    mx.eval(model.parameters())
    if bits < 16:
        nn.quantize(model, group_size=64, bits=bits)
        mx.eval(model.parameters())
    mx.clear_cache()
    return model


def prompts_of(count: int, vocabulary: int, lengths: Callable[[random.Random], tuple[int, int]]) -> list[Prompt]:
    """`count` random prompts with (prompt, new) lengths drawn by `lengths`, always the same ones."""
    draw = random.Random(7)
    made = []
    for _ in range(count):
        length, new = lengths(draw)
        made.append(([draw.randrange(vocabulary) for _ in range(length)], new))
    return made


def stock_rate(model: Any, prompts: Sequence[Prompt]) -> float:
    """Tokens per second of BatchGenerator once all prompts decode together."""
    generator = BatchGenerator(
        model,
        completion_batch_size=len(prompts),
        prefill_batch_size=min(8, len(prompts)),
        prefill_step_size=PREFILL_TOKENS,
    )
    generator.insert([list(tokens) for tokens, _ in prompts], [_NO_LIMIT] * len(prompts))
    while len(generator.next()[1]) < len(prompts):
        pass
    seconds = _time(lambda: [generator.next() for _ in range(STEPS)])
    generator.close()
    mx.clear_cache()
    return len(prompts) * STEPS / seconds


def our_rate(model: Any, prompts: Sequence[Prompt], ahead: Ahead) -> float:
    """Tokens per second of our loop once all prompts decode together."""
    generation = _generation(model, len(prompts), ahead)
    generation.insert([GenRow(id=i, tokens=t, max_tokens=STEPS + 9) for i, (t, _) in enumerate(prompts)])
    for _ in range(4):
        generation.step()
    seconds = _time(lambda: [generation.step() for _ in range(STEPS)])
    mx.clear_cache()
    return len(prompts) * STEPS / seconds


def _generation(model: Any, slots: int, ahead: Ahead) -> Generation:
    return Generation(model, prefill_rows=8, prefill_tokens=PREFILL_TOKENS, eos=frozenset(), slots=slots, ahead=ahead)


def _time(work: Callable[[], object]) -> float:
    mx.synchronize()
    started = time.perf_counter()
    work()
    mx.synchronize()
    return time.perf_counter() - started


def limit(model: Any, batch: int, context: int) -> float:
    """Tokens per second if a step cost only the reading of weights and KV."""
    weights = sum(w.nbytes for name, w in tree_flatten(model.parameters()) if "embed_tokens" not in name)
    layers, heads = model.args.num_hidden_layers, model.args.num_key_value_heads
    kv = 2 * layers * heads * model.args.head_dim * 2 * context * batch
    return batch * BANDWIDTH / (weights + kv)


def in_turns(sides: dict[str, Callable[[], float]], rounds: int) -> dict[str, Any]:
    """Each side's median over the rounds and its spread; the first round is dropped."""
    taken: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(rounds + 1):
        for name, side in sides.items():
            figure = side()
            say(f"round {turn} {name}: {figure:.1f}")
            if turn:
                taken[name].append(figure)
    return {
        name: {
            "median": round(statistics.median(figures), 1),
            "spread": round((max(figures) - min(figures)) / statistics.median(figures), 3),
        }
        for name, figures in taken.items()
    }


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def decode(args: argparse.Namespace) -> dict[str, Any]:
    """Batch 64 with prompts of one length, and of unequal lengths (where a mask is needed)."""
    model = make_model(args.shape, bits=16)
    vocabulary = model.args.vocab_size
    found: dict[str, Any] = {}
    for name, lengths in (
        ("equal", lambda _: (PROMPT_TOKENS, NEW_TOKENS)),
        ("unequal", lambda draw: (draw.randint(PROMPT_TOKENS // 2, PROMPT_TOKENS * 3 // 2), NEW_TOKENS)),
    ):
        prompts = prompts_of(args.batch, vocabulary, lengths)
        sides: dict[str, Callable[[], float]] = {"stock": lambda p=prompts: stock_rate(model, p)}
        for ahead in Ahead:
            sides[f"ours, ahead {ahead.value}"] = lambda p=prompts, a=ahead: our_rate(model, p, a)
        found[name] = in_turns(sides, args.rounds)
        found[name]["bandwidth limit"] = round(limit(model, args.batch, PROMPT_TOKENS + STEPS // 2), 1)
    return found


def knee(args: argparse.Namespace) -> dict[str, Any]:
    """Decode rates over batch sizes: ours and stock, beside the bandwidth's limit."""
    found: dict[str, Any] = {}
    for bits in (16, 4):
        model = make_model(args.shape, bits=bits)
        table = {}
        for batch in args.batches:
            prompts = prompts_of(batch, model.args.vocab_size, lambda _: (PROMPT_TOKENS, NEW_TOKENS))
            our_rate(model, prompts, args.ahead)
            ours = statistics.median(our_rate(model, prompts, args.ahead) for _ in range(args.rounds))
            stock = stock_rate(model, prompts)
            bound = limit(model, batch, PROMPT_TOKENS + STEPS // 2)
            table[batch] = {"ours": round(ours, 1), "stock": round(stock, 1), "limit": round(bound, 1)}
            say(f"{bits} bits, batch {batch}: {table[batch]}")
        found[f"{bits} bits"] = table
        mx.clear_cache()
    return found


def backlog(args: argparse.Namespace) -> dict[str, Any]:
    """Seconds for a mixed backlog: stock at its best of a grid, static batches, ours."""
    model = make_model(args.shape, bits=16)
    rows = prompts_of(
        args.rows,
        model.args.vocab_size,
        _mixed_lengths,
    )
    best: dict[str, Any] = {}
    if "stock" in args.sides:
        best = _best_stock(model, rows[:: max(1, len(rows) // args.grid_rows)], args)
        say(f"best stock: {best}")
    sides: dict[str, Callable[[], float]] = {
        "stock": lambda: _stock_seconds(model, rows, **best),
        "static": lambda: _static_seconds(model, rows, args.batch),
        "ours": lambda: _our_seconds(model, rows, args.batch, args.ahead),
        "ours, twice the cap": lambda: _our_seconds(model, rows, 2 * args.batch, args.ahead),
    }
    new = sum(count for _, count in rows)
    found: dict[str, Any] = in_turns({name: sides[name] for name in sides if name in args.sides}, args.rounds)
    for side in found.values():
        side["tokens_per_s"] = round(new / side["median"], 1)
    return {"best stock": best, "new tokens": new, **found}


def prefix(args: argparse.Namespace) -> dict[str, Any]:
    """Seconds for rows that share 1,000 of 1,300 prompt tokens and get 64 new ones, the prefix computed once or not."""
    model = make_model(args.shape, bits=16)
    ((shared, _),) = prompts_of(1, model.args.vocab_size, lambda _: (1000, 1))
    rows = prompts_of(args.rows, model.args.vocab_size, lambda _: (300, 64))
    own = [Ask(tokens=tokens, new=new) for tokens, new in rows]
    whole = [Ask(tokens=shared + ask.tokens, new=ask.new) for ask in own]
    settings: dict[str, Any] = {"cap": args.batch, "rows": 8, "step": PREFILL_TOKENS, "ahead": args.ahead}
    found: dict[str, Any] = in_turns(
        {
            "without": lambda: ours(model, whole, **settings).seconds,
            "with": lambda: ours(model, own, prefix=shared, **settings).seconds,
        },
        args.rounds,
    )
    return {**found, "speedup": round(found["without"]["median"] / found["with"]["median"], 2)}


def _mixed_lengths(draw: random.Random) -> tuple[int, int]:
    return min(1500, int(draw.lognormvariate(5.9, 0.6)) + 16), draw.randint(32, 256)


def _best_stock(model: Any, rows: Sequence[Prompt], args: argparse.Namespace) -> dict[str, Any]:
    cells = [
        {"longest_first": order, "cap": cap, "prefill_rows": prefill}
        for order in (True, False)
        for cap in (args.batch, 2 * args.batch)
        for prefill in args.prefill_rows
    ]
    seconds = []
    for cell in cells:
        seconds.append(_stock_seconds(model, rows, **cell))
        say(f"grid {cell}: {seconds[-1]:.1f} s")
    return cells[seconds.index(min(seconds))]


def _ordered(rows: Sequence[Prompt]) -> list[Prompt]:
    return sorted(rows, key=lambda row: -(len(row[0]) + row[1]))


def _stock_seconds(model: Any, rows: Sequence[Prompt], *, longest_first: bool, cap: int, prefill_rows: int) -> float:
    rows = _ordered(rows) if longest_first else rows
    return _time(
        lambda: batch_generate(
            model,
            NoTokenizer(),
            [list(tokens) for tokens, _ in rows],
            max_tokens=[new for _, new in rows],
            completion_batch_size=cap,
            prefill_batch_size=prefill_rows,
            prefill_step_size=PREFILL_TOKENS,
        )
    )


def _static_seconds(model: Any, rows: Sequence[Prompt], batch: int) -> float:
    rows = _ordered(rows)
    return sum(
        _stock_seconds(model, rows[at : at + batch], longest_first=False, cap=batch, prefill_rows=16)
        for at in range(0, len(rows), batch)
    )


def _our_seconds(model: Any, rows: Sequence[Prompt], cap: int, ahead: Ahead) -> float:
    def work() -> None:
        generation = _generation(model, cap, ahead)
        waiting, running = list(enumerate(_ordered(rows)))[::-1], 0
        while waiting or running:
            if waiting and (cap - running >= min(8, len(waiting)) or not running):
                chosen = [waiting.pop() for _ in range(min(cap - running, len(waiting)))]
                generation.insert([GenRow(id=i, tokens=tokens, max_tokens=new) for i, (tokens, new) in chosen])
                running += len(chosen)
            running -= sum(finish is not None for _, _, finish in generation.step())

    return _time(work)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["decode", "knee", "backlog", "prefix"])
    parser.add_argument("--shape", choices=list(SHAPES), default="qwen3-8b")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32, 64, 128])
    parser.add_argument("--rows", type=int, default=512)
    parser.add_argument("--grid-rows", type=int, default=128)
    parser.add_argument("--prefill-rows", type=int, nargs="+", default=[4, 16], help="of stock's grid")
    parser.add_argument("--sides", nargs="+", default=["stock", "static", "ours"], help="of a backlog")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ahead", type=Ahead, choices=list(Ahead), default=Ahead.SEND)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    found = {"decode": decode, "knee": knee, "backlog": backlog, "prefix": prefix}[args.what](args)
    text = json.dumps(found, indent=1)
    print(text)
    if args.out:
        args.out.write_text(text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
