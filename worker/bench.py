"""Times a model at several batch sizes, in a process of its own. `python -m worker.bench --fd N --model ...`.

Writes JSON lines to the file descriptor: `say` is progress, `model`, `table` and `knees` are results, `error` ends it.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from fleet import leash
from fleet.config import StateDir
from fleet.errors import FleetError, UsageError
from worker import memory, trial
from worker.caps import Caps
from worker.device import subject, working_set_bytes
from worker.engine import make_caps
from worker.gauge import Gauge
from worker.generation.rows import GenRow
from worker.knee import MOST_ROWS, Prefill, PrefillSample, Sample, bucket_of, next_rows
from worker.knee_store import KneeStore
from worker.models import LoadedModel, load
from worker.solo import make_generation
from worker.sweep import Sweep
from worker.trial import Table, Trial

#: Prompt and new tokens of the runs that are not timed: they only make the kernels ready.
_WARM_PROMPT, _WARM_NEW = 16, 3
#: New tokens at most of the first of them, which is else like the runs that are timed: clocks rise, memory is touched.
_FIRST_NEW = 64

#: Said first, as what follows the tables can take longer than they do.
BEGIN = (
    "loading the model; after the tables the knees for `fleet run` are measured where they are not known, which can "
    "take minutes: Ctrl-C then keeps the tables and what was measured"
)

Tell = Callable[[dict[str, Any]], None]


class Bench:
    """Runs one loaded model."""

    def __init__(self, loaded: LoadedModel, limits: memory.Limits, tell: Tell, *, runs: int, seed: int) -> None:
        self._loaded = loaded
        self._limits = limits
        self._tell = tell
        self._runs = runs
        self._random = np.random.default_rng(seed)

    def table(self, name: str, batches: Sequence[int], *, prompt_tokens: int, output_tokens: int) -> Table:
        """Times the `batches`, or those that the stop rule wants when there are none given, each a few times."""
        charged = memory.charged_tokens(prompt_tokens, output_tokens)
        most = min(MOST_ROWS, self._limits.budget_tokens // charged)
        if most < 1:
            raise UsageError(
                memory.refusal(prompt_tokens, output_tokens, self._limits) or "not even one row fits in memory"
            )
        if self._loaded.single:
            most = 1
        wanted = sorted(set(batches))
        trials: list[Trial] = []
        ended = ""
        done: list[int] = []
        while (batch := self._next(wanted, done, trials, most)) is not None:
            if batch > most:
                ended = self._why(batch, most)
                break
            try:
                if done:
                    self._run(batch, _WARM_PROMPT, _WARM_NEW)
                else:
                    self._run(batch, prompt_tokens, min(output_tokens, _FIRST_NEW))
                trials.append(self._timed(name, 1, batch, prompt_tokens, output_tokens))
            except (RuntimeError, MemoryError) as error:
                if not memory.is_shortage(error) or not trials:
                    raise
                ended = f"batch {batch} found no memory ({error})"
                break
            done.append(batch)
        for run in range(2, self._runs + 1):  # round after round, so that a slow minute does not hit one batch alone
            trials += [self._timed(name, run, batch, prompt_tokens, output_tokens) for batch in done]
        return trial.table(name, trials, prompt_tokens=prompt_tokens, output_tokens=output_tokens, ended=ended)

    @staticmethod
    def _next(wanted: Sequence[int], done: Sequence[int], trials: Sequence[Trial], most: int) -> int | None:
        if wanted:
            return wanted[len(done)] if len(done) < len(wanted) else None
        return next_rows([Sample(rows=one.batch, tps=one.total_tps) for one in trials], most_rows=most)

    def _why(self, batch: int, most: int) -> str:
        if self._loaded.single:
            return f"one row at a time: {self._loaded.single}"
        return f"batch {batch} is left out: {most} rows of this length fit in memory" + (
            " (no more are ever run together)" if most == MOST_ROWS else ""
        )

    def _timed(self, name: str, run: int, batch: int, prompt_tokens: int, output_tokens: int) -> Trial:
        timed = self._run(batch, prompt_tokens, output_tokens)
        self._tell({"say": f"{name}, run {run} of {self._runs}, batch {batch}: {timed.total_tps:,.1f} tok/s"})
        return timed

    def _run(self, batch: int, prompt_tokens: int, output_tokens: int) -> Trial:
        """Unique random prompts of one length, and so many new tokens after each whatever they are."""
        loaded = self._loaded
        mx.clear_cache()
        mx.reset_peak_memory()
        generation = make_generation(
            loaded.model,
            single=bool(loaded.single),
            slots=batch,
            prefill_rows=loaded.prefill.rows,
            prefill_tokens=loaded.prefill.tokens,
            eos=frozenset(),
        )
        prompts = self._random.integers(0, loaded.vocabulary, (batch, prompt_tokens)).tolist()
        began = time.perf_counter()
        generation.insert([GenRow(id=i, tokens=tokens, max_tokens=output_tokens) for i, tokens in enumerate(prompts)])
        while generation.step():
            pass
        mx.synchronize()
        counters = generation.counters
        return Trial(
            batch=batch,
            total_tps=batch * output_tokens / counters.decode_s,
            prompt_tps=batch * prompt_tokens / counters.prefill_s,
            seconds=time.perf_counter() - began,
            peak_bytes=mx.get_peak_memory(),
        )


class ToldGauge(Gauge):
    """Tells each sample once it is taken."""

    def __init__(self, model: Any, tell: Tell, *, vocabulary: int) -> None:
        super().__init__(model, vocabulary=vocabulary)
        self._tell = tell

    def decode(self, rows: int, tokens: int) -> Sample:
        """As `Gauge` does."""
        sample = super().decode(rows, tokens)
        self._tell({"say": f"knee, batch {rows}: {sample.tps:,.1f} tok/s"})
        return sample

    def prefill(self, setting: Prefill, tokens: int, prompts: int) -> PrefillSample:
        """As `Gauge` does."""
        sample = super().prefill(setting, tokens, prompts)
        together = f"{setting.rows} together, {setting.tokens:,} tokens at a time"
        self._tell({"say": f"prompts, {together}: {sample.tps:,.1f} tok/s"})
        return sample


def measure_knees(
    loaded: LoadedModel, limits: memory.Limits, store: KneeStore, lengths: Sequence[int], tell: Tell
) -> None:
    """Measures the buckets of these lengths that are not stored, and tells of them all."""
    if loaded.single:
        return
    caps = make_caps(loaded, store.load(), limits, given=0, guess=lambda: 1)
    sweep = Sweep(ToldGauge(loaded.model, tell, vocabulary=loaded.vocabulary), caps, store)

    def keep() -> bool:
        sweep.save()  # before each sample: a Ctrl-C costs one
        return True

    buckets = sorted({bucket_of(length) for length in lengths})
    for bucket in buckets:
        if sweep.can(bucket, memory.whole_tokens(limits)):
            tell({"say": f"measuring the knee of rows up to {bucket:,} tokens"})
            sweep.run(bucket, memory.whole_tokens(limits), keep)
            sweep.save()
    tell({"knees": [found for bucket in buckets if (found := _known(caps, bucket))]})


def _known(caps: Caps, bucket: int) -> dict[str, Any] | None:
    curve = caps.curves.get(bucket)
    if curve is None or curve.knee is None:
        return None
    setting = caps.prefill(bucket)
    return {
        "bucket_tokens": bucket,
        "rows": curve.knee.rows,
        "tps": curve.knee.tps * curve.scale,
        "prefill_rows": setting.rows,
        "prefill_tokens": setting.tokens,
    }


def bench(args: argparse.Namespace, tell: Tell) -> None:
    """Loads the model, fills the tables asked for, measures their buckets' knees."""
    state = StateDir(args.state)
    tell({"say": BEGIN})
    loaded = load(args.model, "", state.root / "hashes.json")
    for output_tokens in filter(None, (args.max_tokens, args.long)):
        if args.prompt_tokens + output_tokens > loaded.context_tokens:
            raise UsageError(
                f"{args.prompt_tokens} prompt tokens and {output_tokens} new ones are over the model's context of "
                f"{loaded.context_tokens}: ask for fewer"
            )
    budget = memory.budget_bytes(
        working_set_bytes=working_set_bytes(),
        weight_bytes=loaded.weight_bytes,
        activation_bytes=max(0, mx.get_peak_memory() - loaded.weight_bytes),
    )
    limits = memory.limits(context_tokens=loaded.context_tokens, kv_bytes=loaded.kv_bytes, budget_bytes=budget)
    about, seed = subject(loaded.hash), secrets.randbits(32)
    tell({"model": {"hash": loaded.hash, "machine": about.machine, "mlx": about.mlx, "seed": seed}})
    runner = Bench(loaded, limits, tell, runs=args.runs, seed=seed)
    asked = {"short": args.max_tokens, "long": args.long}
    for name, output_tokens in asked.items():
        if output_tokens:
            filled = runner.table(name, args.batch_sizes, prompt_tokens=args.prompt_tokens, output_tokens=output_tokens)
            tell({"table": filled.as_dict()})
    store = KneeStore(state.knees, about)
    if args.remeasure:
        store.forget()
    measure_knees(loaded, limits, store, [args.prompt_tokens + new for new in asked.values() if new], tell)


def main(argv: Sequence[str]) -> int:
    """Runs the benchmark; 1 after an error, which was told."""
    args = _parser().parse_args(argv)
    leash.hold()
    os.dup2(2, 1)  # a library's print must not land among the results
    with os.fdopen(args.fd, "w") as results:

        def tell(message: dict[str, Any]) -> None:
            print(json.dumps(message), file=results, flush=True)

        try:
            bench(args, tell)
        except FleetError as error:
            tell({"error": str(error), "usage": isinstance(error, UsageError)})
            return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m worker.bench", description=__doc__)
    parser.add_argument("--fd", type=int, required=True, help="inherited end of a pipe for the results")
    parser.add_argument("--model", required=True, help="folder or hub id")
    parser.add_argument("--state", type=Path, required=True, help="the state folder")
    parser.add_argument("--batch-sizes", type=int, nargs="*", default=[], help="none for those the stop rule wants")
    parser.add_argument("--max-tokens", type=int, required=True, help="new tokens of the short table")
    parser.add_argument("--long", type=int, default=0, help="new tokens of the long table, 0 for none")
    parser.add_argument("--prompt-tokens", type=int, required=True, help="tokens of each prompt")
    parser.add_argument("--runs", type=int, required=True, help="times each batch is run")
    parser.add_argument("--remeasure", action="store_true", help="forget the knees known of this model first")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
