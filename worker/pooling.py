"""From hidden states to one vector a text: pooling and Dense modules. Its length is made 1 elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import mlx.core as mx
import numpy as np

from fleet.errors import ModelError
from fleet.sentence_modules import Activation, Dense, Pooling
from worker.encoders.weights import read_weights

#: A step behind the pooling.
Step = Callable[[mx.array], mx.array]


def pool(hidden: mx.array, lengths: np.ndarray, mode: Pooling) -> mx.array:
    """One float32 vector a row of `hidden` (rows, tokens, width), of whose tokens the first `lengths` are real."""
    tokens = hidden.shape[1]
    real = np.arange(tokens)[None, :] < lengths[:, None]
    if mode is Pooling.CLS:
        pooled = hidden[:, 0]
    elif mode is Pooling.LAST:
        pooled = mx.take_along_axis(hidden, mx.array(lengths - 1)[:, None, None], axis=1)[:, 0]
    elif mode is Pooling.MAX:
        pooled = mx.where(mx.array(real)[..., None], hidden, -mx.inf).max(axis=1)
    else:
        shares = mx.array((real / lengths[:, None]).astype(np.float32))
        pooled = (shares[:, None, :] @ hidden.astype(mx.float32))[:, 0]
    return pooled.astype(mx.float32)


def dense_steps(layers: Sequence[Dense]) -> list[Step]:
    """The Dense modules, loaded; ModelError when their weights are not as they say."""
    return [_dense_step(layer) for layer in layers]


def _dense_step(layer: Dense) -> Step:
    weights = read_weights(layer.weights)
    weight, bias = weights.get("linear.weight"), weights.get("linear.bias")
    if weight is None or weight.shape != (layer.out_features, layer.in_features) or (bias is None) == layer.bias:
        raise ModelError(f"{layer.weights} does not hold what its config.json says")
    weight = weight.astype(mx.float32).T
    offset = None if bias is None else bias.astype(mx.float32)

    def apply(vectors: mx.array) -> mx.array:
        made = vectors @ weight if offset is None else mx.addmm(offset, vectors, weight)
        return mx.tanh(made) if layer.activation is Activation.TANH else made

    return apply
