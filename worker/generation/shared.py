"""Attention of one new token a row where all rows begin with the same columns, which are then read once for all.

A row's query meets the shared keys in one matrix product with all other rows' queries, and its own keys alone; one
softmax goes over both. This is how Hydragen (Juravsky et al., 2024, arXiv 2402.05099) treats a shared prefix, with the
scores laid side by side instead of two softmaxes joined: they are small beside the keys that are not read again.
"""

from __future__ import annotations

import mlx.core as mx


def attend_shared(
    queries: mx.array,
    keys: mx.array,
    values: mx.array,
    *,
    scale: float,
    mask: mx.array | None,
    shared: int,
    holder: int,
) -> mx.array:
    """Attention of (rows, heads, 1, dim) queries over (rows, key heads, columns, dim) keys and values, as mlx-lm's.

    All rows that anyone reads have the columns of row `holder` in their first `shared` ones and see all of them. `mask`
    is boolean, broadcastable to (rows, heads, 1, columns).
    """
    rows, heads, _, dim = queries.shape
    key_heads = keys.shape[1]
    grouped = (queries * scale).reshape(rows, key_heads, heads // key_heads, dim)
    own = grouped @ keys[:, :, shared:].swapaxes(-1, -2)
    if mask is not None:
        own = mx.where(mask[..., shared:], own, mx.array(float("-inf"), own.dtype))
    common = _apart(_together(grouped) @ keys[holder, :, :shared].swapaxes(-1, -2), rows)
    weights = mx.softmax(mx.concatenate([common, own], axis=-1), axis=-1, precise=True)
    answer = _apart(_together(weights[..., :shared]) @ values[holder, :, :shared], rows)
    answer = answer + weights[..., shared:] @ values[:, :, shared:]
    return answer.reshape(rows, heads, 1, values.shape[-1])


def _together(array: mx.array) -> mx.array:
    """All rows' queries of a key head as one matrix: (rows, key heads, repeats, n) to (key heads, rows * repeats, n)"""
    rows, key_heads, repeats, n = array.shape
    return array.swapaxes(0, 1).reshape(key_heads, rows * repeats, n)


def _apart(array: mx.array, rows: int) -> mx.array:
    """The way back from `_together`."""
    return array.reshape(array.shape[0], rows, -1, array.shape[-1]).swapaxes(0, 1)
