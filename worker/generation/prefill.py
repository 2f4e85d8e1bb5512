"""Prompts to cached state: a few rows together, a bounded number of tokens per evaluation."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import ArraysCache, CacheList, KVCache, RotatingKVCache, make_prompt_cache

from worker.generation.quick import quick
from worker.generation.slots import Piece


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefix:
    """The computed state of tokens that many rows begin with."""

    #: never empty
    tokens: tuple[int, ...]
    #: the model's caches after these tokens, one row; read, never written
    caches: tuple[Any, ...]

    @property
    def nbytes(self) -> int:
        """Bytes the state takes."""
        return sum(cache.nbytes for cache in self.caches)


def compute_prefix(model: Any, tokens: Sequence[int], *, tokens_per_eval: int) -> Prefix:
    """Computes a shared prefix once."""
    caches = make_prompt_cache(model)
    _run(model, caches, mx.array([list(tokens)]), tokens_per_eval)
    return Prefix(tokens=tuple(tokens), caches=tuple(caches))


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefilled:
    """Computed prompts."""

    #: for each prompt its state, layer by layer, the prefix included
    pieces: list[list[Piece]]
    #: positions computed, padding included
    positions: int


def prefill(
    model: Any, prompts: Sequence[Sequence[int]], *, tokens_per_eval: int, prefix: Prefix | None = None
) -> Prefilled:
    """Computes prompts in one batch, longest first; they may be empty.

    Equal lengths run without padding. Unequal ones are padded on the right, where causal masks hide it from keys and
    values; other kinds of state go through mlx-lm's batch caches.
    """
    single = list(prefix.caches) if prefix else make_prompt_cache(model)
    longest, shortest = len(prompts[0]), len(prompts[-1])
    if longest > shortest and not _only_keys(single):
        return _prefill_ragged(model, prompts, single, tokens_per_eval, len(prefix.tokens) if prefix else 0)
    inputs = mx.array([[*prompt, *[0] * (longest - len(prompt))] for prompt in prompts])
    caches = [_repeated(cache, len(prompts)) for cache in single]
    _run(model, caches, inputs, tokens_per_eval)
    before = len(prefix.tokens) if prefix else 0
    pieces = [[piece(cache, i, before + len(prompt)) for cache in caches] for i, prompt in enumerate(prompts)]
    return Prefilled(pieces=pieces, positions=longest * len(prompts))


def _prefill_ragged(
    model: Any, prompts: Sequence[Sequence[int]], single: Sequence[Any], tokens_per_eval: int, before: int
) -> Prefilled:
    """Prompts of unequal lengths through mlx-lm's batch caches; a row leaves with the chunk that completes it.

    Padding is declared chunk by chunk, as mlx-lm itself does: falcon_h1 answered wrongly when it spanned several.
    """
    caches = [cache.merge([cache] * len(prompts)) for cache in single]
    chunk = max(1, tokens_per_eval // len(prompts))
    pieces: list[list[Piece]] = []
    start = positions = 0
    left = list(prompts)
    while left:
        parts = [prompt[start : start + chunk] for prompt in left]
        positions += len(parts[0]) * len(parts)
        _run_padded(model, caches, parts)
        start += len(parts[0])
        done = [i for i, prompt in enumerate(left) if len(prompt) <= start]
        pieces[:0] = [[piece(cache.extract(i), 0, before + len(left[i])) for cache in caches] for i in done]
        left = left[: len(left) - len(done)]
        if left and done:
            for cache in caches:
                cache.filter(list(range(len(left))))
    return Prefilled(pieces=pieces, positions=positions)


def _run_padded(model: Any, caches: Sequence[Any], parts: Sequence[Sequence[int]]) -> None:
    """One evaluation of the parts, longest first, each padded to the first one's length."""
    lengths = [len(part) for part in parts]
    pads = [lengths[0] - length for length in lengths]
    if any(pads):
        for cache in caches:
            cache.prepare(lengths=lengths, right_padding=pads)
    _feed(model, caches, mx.array([[*part, *[0] * pad] for part, pad in zip(parts, pads, strict=True)]))
    if any(pads):
        for cache in caches:
            cache.finalize()
        mx.eval([cache.state for cache in caches])


def groups(lengths: Sequence[int], *, rows: int) -> Iterator[list[int]]:
    """Indices of the prompts that run together: `rows` at most, neighbours by length, longest first."""
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    for start in range(0, len(order), rows):
        yield order[start : start + rows]


def piece(cache: Any, row: int, length: int) -> Piece:
    """The state that `row` of a model's cache has after its first `length` tokens, as `Slots.place` wants it."""
    if isinstance(cache, CacheList):
        return [piece(part, row, length) for part in cache.caches]
    if isinstance(cache, ArraysCache):
        return [None if array is None else array[row : row + 1] for array in cache.cache]
    if cache.keys is None or length == 0:
        return None
    if isinstance(cache, RotatingKVCache):
        return tuple(_ring(cache, array, row, length) for array in (cache.keys, cache.values))
    return tuple(array[row : row + 1, :, :length] for array in (cache.keys, cache.values))


def _ring(cache: RotatingKVCache, array: mx.array, row: int, length: int) -> mx.array:
    """A sliding window's last tokens, token p in column p modulo the window."""
    window = cache.max_size
    recent = cache._temporal_order(array)[row : row + 1, :, -min(window, length) :]
    turn = length % window if length > window else 0
    return mx.concatenate([recent[:, :, -turn:], recent[:, :, :-turn]], axis=2) if turn else recent


def _only_keys(caches: Sequence[Any]) -> bool:
    """Whether right padding is invisible: state that is keys and values of all tokens, in order."""
    return all(_only_keys(cache.caches) if isinstance(cache, CacheList) else type(cache) is KVCache for cache in caches)


def _repeated(cache: Any, rows: int) -> Any:
    """A copy of a one-row cache with that row `rows` times; the original is never written."""
    if isinstance(cache, CacheList):
        return CacheList(*[_repeated(part, rows) for part in cache.caches])
    copied = copy.copy(cache)
    if isinstance(cache, ArraysCache):
        copied.cache = [None if array is None else mx.repeat(array, rows, axis=0) for array in cache.cache]
    elif cache.keys is not None:
        copied.keys, copied.values = (mx.repeat(array, rows, axis=0) for array in (cache.keys, cache.values))
    return copied


def _run(model: Any, caches: Sequence[Any], inputs: mx.array, tokens_per_eval: int) -> None:
    """Feeds `inputs`, (rows, tokens), through the model, keeping only the caches."""
    chunk = max(1, tokens_per_eval // inputs.shape[0])
    for start in range(0, inputs.shape[1], chunk):
        _feed(model, caches, inputs[:, start : start + chunk])


def _feed(model: Any, caches: Sequence[Any], inputs: mx.array) -> None:
    with quick(model):
        model(inputs, cache=list(caches))
    mx.eval([cache.state for cache in caches])
