"""GELU and attention from sums and products alone, for x86.

There MLX 0.32 computes exponentials and error functions one number at a time: erf took 78 ns a number and softmax 15-40
on the development machine, a sum or a product 0.3, since those are vectorised. Both functions here are as exact as
float32 is: their errors are those of rounding. Compiled they take half of what the single steps do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import mlx.core as mx

#: Beyond this the error function is 1 in float32.
_GELU_END = 5.4
#: (normal distribution - 1/2) / x = P(x^2) / Q(x^2), fitted for the least error of x times it on [-5.4, 5.4].
_GELU_P = (
    0.3989420533180237,
    0.03449204936623573,
    0.004722398240119219,
    0.00017626601038500667,
    6.490399755421095e-06,
    2.277698207819867e-08,
)
_GELU_Q = (
    1.0,
    0.253123015165329,
    0.02902788482606411,
    0.0019254900980740786,
    7.651028136024252e-05,
    1.2086645710951416e-06,
)
#: 2^f on [-1/2, 1/2], fitted for the least relative error: 7.5e-8.
_POWER = (
    1.0000000716546709,
    0.6931469670643391,
    0.24022119723884158,
    0.05550713274186065,
    0.009675541332677083,
    0.0013276471770100468,
)
#: Added and taken away again it rounds a float32 to an integer, which then stands in its lowest bits.
_ROUND = 1.5 * 2.0**23
_MANTISSA_BITS = 23
#: 2^-126 is the smallest normal float32; beside the 1 of the largest score it is nothing.
_LEAST = -126.0


@partial(mx.compile, shapeless=True)
def gelu(x: mx.array) -> mx.array:
    """x times the normal distribution at x."""
    u = mx.clip(x, -_GELU_END, _GELU_END)
    t = u * u
    return x * (u * (polynomial(t, _GELU_P) / polynomial(t, _GELU_Q)) + 0.5)


def attend(queries: mx.array, keys: mx.array, values: mx.array, mask: mx.array | None) -> mx.array:
    """Scaled dot-product attention; all are (rows, heads, tokens, size), `mask` is added to the scores."""
    scale = math.log2(math.e) / math.sqrt(queries.shape[-1])
    scores = (queries * scale) @ keys.swapaxes(-1, -2)  # in powers of two
    if mask is not None:
        scores = scores + mask
    weights = _weights(scores, scores.max(axis=-1, keepdims=True))
    return (weights @ values) / weights.sum(axis=-1, keepdims=True)


@mx.compile
def _weights(scores: mx.array, largest: mx.array) -> mx.array:
    return power_of_two(scores - largest)


def power_of_two(y: mx.array) -> mx.array:
    """2^y for float32 y <= 0; 2^-126 for what is below."""
    y = mx.maximum(y, _LEAST)
    rounded = y + _ROUND
    fraction = y - (rounded - _ROUND)
    exponent = mx.left_shift(rounded.view(mx.int32), _MANTISSA_BITS)
    return (polynomial(fraction, _POWER).view(mx.int32) + exponent).view(mx.float32)


def polynomial(x: mx.array, coefficients: Sequence[float]) -> mx.array:
    """c0 + c1 x + c2 x^2 + ..."""
    *rest, result = coefficients
    total = x * result + rest[-1]
    for coefficient in reversed(rest[:-1]):
        total = total * x + coefficient
    return total
