"""Prompts to cached state: a few rows together, a bounded number of tokens per evaluation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import ArraysCache, CacheList, KVCache, RotatingKVCache, make_prompt_cache

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
    _run(model, caches, mx.array(tokens)[None], tokens_per_eval)
    return Prefix(tokens=tuple(tokens), caches=tuple(caches))


def prefill(
    model: Any, prompts: Sequence[Sequence[int]], *, tokens_per_eval: int, prefix: Prefix | None = None
) -> list[list[Piece]]:
    """Computes the prompts in one batch and returns, for each, its state layer by layer (the prefix included).

    A prompt may be empty. Equal lengths run without padding; unequal ones are padded on the right, where causal masks
    hide the padding from keys and values, and mlx-lm's batch caches do so for other kinds of state.
    """
    lengths = [len(prompt) for prompt in prompts]
    longest = max(lengths)
    before = len(prefix.tokens) if prefix else 0
    single = list(prefix.caches) if prefix else make_prompt_cache(model)
    inputs = mx.array([[*prompt, *[0] * (longest - len(prompt))] for prompt in prompts])
    if min(lengths) == longest or _only_keys(single):
        caches = [_repeated(cache, len(prompts)) for cache in single]
        _run(model, caches, inputs, tokens_per_eval)
        return [[piece(cache, i, before + length) for cache in caches] for i, length in enumerate(lengths)]
    merged = [cache.merge([cache] * len(prompts)) for cache in single]
    for cache in merged:
        cache.prepare(lengths=lengths, right_padding=[longest - length for length in lengths])
    _run(model, merged, inputs, tokens_per_eval)
    for cache in merged:
        cache.finalize()
    return [[piece(cache.extract(i), 0, before + n) for cache in merged] for i, n in enumerate(lengths)]


def padding(lengths: Sequence[int]) -> int:
    """Tokens computed only because prompts of these lengths run together."""
    return max(lengths) * len(lengths) - sum(lengths)


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
    return mx.roll(recent, turn, axis=2) if turn else recent


def _only_keys(caches: Sequence[Any]) -> bool:
    """Whether right padding is invisible: state that is keys and values of all tokens, in order."""
    return all(
        _only_keys(cache.caches) if isinstance(cache, CacheList) else type(cache) is KVCache for cache in caches
    )


def _repeated(cache: Any, rows: int) -> Any:
    """A copy of a one-row cache with that row `rows` times; the original is never written."""
    if isinstance(cache, CacheList):
        return CacheList(*[_repeated(part, rows) for part in cache.caches])
    copied = type(cache).__new__(type(cache))
    copied.__dict__.update(cache.__dict__)
    if isinstance(cache, ArraysCache):
        copied.cache = [None if array is None else mx.repeat(array, rows, axis=0) for array in cache.cache]
    elif cache.keys is not None:
        copied.keys, copied.values = (mx.repeat(array, rows, axis=0) for array in (cache.keys, cache.values))
    return copied


def _run(model: Any, caches: Sequence[Any], inputs: mx.array, tokens_per_eval: int) -> None:
    """Feeds `inputs`, (rows, tokens), through the model, keeping only the caches."""
    chunk = max(1, tokens_per_eval // inputs.shape[0])
    for start in range(0, inputs.shape[1], chunk):
        model(inputs[:, start : start + chunk], cache=list(caches))
        mx.eval([cache.state for cache in caches])
