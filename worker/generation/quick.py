"""Attention and SwiGLU for the CPUs on which MLX's exp is slow: a power of two does the same there.

On x86 MLX computes exp by a series of its own, one number at a time: 13 ns each, where `power(2, x)`, which is the C
library's, took 5. A prompt of 700 tokens (SmolLM2-135M, float32) spent 45 % of its time in exp. The encoders' series,
`worker.encoders.arithmetic`, is faster still once compiled, but that is done for each shape anew: it gained nothing
with prompts, whose chunks have each a shape of their own.
"""

from __future__ import annotations

import math
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import mlx.core as mx
from mlx_lm.models import activations

#: exp(x) is 2 to the power of x times this.
_LOG2_E = math.log2(math.e)
_ATTENTION, _GATE = "scaled_dot_product_attention", "swiglu"
_usual_attention = mx.fast.scaled_dot_product_attention


@contextmanager
def quick(model: Any) -> Iterator[None]:
    """While it lasts, what `model` is asked to compute uses these functions where that is faster."""
    if not _exp_is_slow():
        yield
        return
    module = sys.modules[type(model).__module__]
    gated = getattr(module, _GATE, None) is activations.swiglu
    setattr(mx.fast, _ATTENTION, attend)
    if gated:
        setattr(module, _GATE, swiglu)
    try:
        yield
    finally:
        setattr(mx.fast, _ATTENTION, _usual_attention)
        if gated:
            setattr(module, _GATE, activations.swiglu)


def attend(
    queries: mx.array,
    keys: mx.array,
    values: mx.array,
    *,
    scale: float,
    mask: mx.array | str | None = None,
    **more: Any,
) -> mx.array:
    """As MLX's `scaled_dot_product_attention`: (rows, heads, n, dim) queries over (rows, key heads, columns, dim) keys
    and values. Halves and sinks are left to that."""
    if queries.dtype != mx.float32 or any(value is not None for value in more.values()):
        return _usual_attention(queries, keys, values, scale=scale, mask=mask, **more)
    rows, heads, new, dim = queries.shape
    key_heads, columns = keys.shape[1:3]
    repeats = heads // key_heads
    grouped = (queries * (scale * _LOG2_E)).reshape(rows, key_heads, repeats * new, dim)
    scores = grouped @ keys.swapaxes(-1, -2)
    if mask is not None:
        added = _causal(new, columns) if isinstance(mask, str) else _added(mask)
        scores = (scores.reshape(rows, heads, new, columns) + added).reshape(scores.shape)
    weights = mx.power(2.0, scores - mx.max(scores, axis=-1, keepdims=True))
    answer = (weights @ values) / mx.sum(weights, axis=-1, keepdims=True)
    return answer.reshape(rows, heads, new, values.shape[-1])


def swiglu(gate: mx.array, x: mx.array) -> mx.array:
    """As mlx-lm's: silu(gate) * x."""
    if gate.dtype != mx.float32:
        usual: mx.array = activations.swiglu(gate, x)
        return usual
    return gate / (1.0 + mx.power(2.0, gate * -_LOG2_E)) * x


def _added(mask: mx.array) -> mx.array:
    """What is added to scores: in place of a boolean mask the least number, as MLX does. A row that sees nothing then
    gets some answer, where minus infinity would make it no number."""
    if mask.dtype != mx.bool_:
        return mask * _LOG2_E
    return mx.where(mask, 0.0, mx.finfo(mx.float32).min)


@lru_cache(maxsize=2)
def _causal(new: int, columns: int) -> mx.array:
    last = mx.arange(columns - new, columns)[:, None]
    return _added(mx.arange(columns)[None] <= last)


def _exp_is_slow() -> bool:
    return mx.default_device().type == mx.DeviceType.cpu and platform.machine() in ("x86_64", "AMD64")
