"""BERT's encoder in MLX, RoBERTa's included: tokens in, a hidden state for each token out."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from worker.encoders import arithmetic
from worker.encoders.config import EncoderConfig
from worker.encoders.weights import EMBEDDINGS, POSITIONS, TYPES, WORDS

Weights = Mapping[str, mx.array]


@dataclass(frozen=True, slots=True)
class Linear:
    """x W + b, W as (inputs, outputs)."""

    weight: mx.array
    bias: mx.array

    def __call__(self, x: mx.array) -> mx.array:
        return mx.addmm(self.bias, x, self.weight)


@dataclass(frozen=True, slots=True)
class Norm:
    """Layer normalisation."""

    weight: mx.array
    bias: mx.array
    eps: float

    def __call__(self, x: mx.array) -> mx.array:
        return mx.fast.layer_norm(x, self.weight, self.bias, self.eps)


@dataclass(frozen=True, slots=True)
class Functions:
    """What a device computes best in a way of its own."""

    gelu: Callable[[mx.array], mx.array]
    #: queries, keys and values (rows, heads, tokens, size), and what is added to the scores
    attend: Callable[[mx.array, mx.array, mx.array, mx.array | None], mx.array]

    @classmethod
    def here(cls) -> Functions:
        """Those for MLX's default device."""
        if mx.default_device().type == mx.DeviceType.cpu:
            return cls(arithmetic.gelu, arithmetic.attend)
        return cls(nn.gelu, fused_attention)


def fused_attention(queries: mx.array, keys: mx.array, values: mx.array, mask: mx.array | None) -> mx.array:
    """MLX's own."""
    scale = 1 / math.sqrt(queries.shape[-1])
    return mx.fast.scaled_dot_product_attention(queries, keys, values, scale=scale, mask=mask)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One layer; queries, keys and values come from one product."""

    heads: int
    functions: Functions
    qkv: Linear
    attended: Linear
    attended_norm: Norm
    inner: Linear
    outer: Linear
    outer_norm: Norm

    def __call__(self, x: mx.array, mask: mx.array | None) -> mx.array:
        x = self.attended_norm(x + self.attended(self._attend(x, mask)))
        return self.outer_norm(x + self.outer(self.functions.gelu(self.inner(x))))

    def _attend(self, x: mx.array, mask: mx.array | None) -> mx.array:
        rows, tokens, width = x.shape
        qkv = self.qkv(x).reshape(rows, tokens, 3, self.heads, -1).transpose(2, 0, 3, 1, 4)
        mixed = self.functions.attend(qkv[0], qkv[1], qkv[2], mask)
        return mixed.transpose(0, 2, 1, 3).reshape(rows, tokens, width)


class Bert:
    """The encoder: `hidden(tokens, lengths)`."""

    def __init__(self, config: EncoderConfig, weights: Weights, functions: Functions) -> None:
        self._config = config
        self._words = weights[WORDS]
        #: of the one token type that texts have, added beforehand
        self._positions = weights[POSITIONS] + weights[TYPES][0]
        self._norm = _norm(weights, EMBEDDINGS + "LayerNorm", config)
        self._layers = [_layer(weights, f"encoder.layer.{at}.", config, functions) for at in range(config.layers)]

    def hidden(self, tokens: np.ndarray, lengths: np.ndarray) -> mx.array:
        """Hidden states (rows, longest, width) of `tokens` (rows, longest), of which `lengths` are real, in front."""
        x = mx.take(self._words, mx.array(tokens), axis=0) + self._placed(tokens)
        x = self._norm(x)
        mask = padding_mask(lengths, tokens.shape[1], x.dtype)
        for layer in self._layers:
            x = layer(x, mask)
        return x

    def _placed(self, tokens: np.ndarray) -> mx.array:
        longest = tokens.shape[1]
        if not self._config.offset_positions:
            return self._positions[:longest]
        real = tokens != self._config.pad
        places = np.cumsum(real, axis=1) * real + self._config.pad
        return mx.take(self._positions, mx.array(places), axis=0)


def padding_mask(lengths: np.ndarray, longest: int, dtype: mx.Dtype) -> mx.array | None:
    """What is added to scores so that nothing attends to padding; None where there is none."""
    if (lengths == longest).all():
        return None
    padding = np.arange(longest)[None, :] >= lengths[:, None]
    return mx.array(np.where(padding, -np.inf, 0.0).astype(np.float32)).astype(dtype)[:, None, None, :]


def _layer(weights: Weights, name: str, config: EncoderConfig, functions: Functions) -> Layer:
    own = name + "attention.self."
    return Layer(
        heads=config.heads,
        functions=functions,
        qkv=_linear(weights, own + "query", own + "key", own + "value"),
        attended=_linear(weights, name + "attention.output.dense"),
        attended_norm=_norm(weights, name + "attention.output.LayerNorm", config),
        inner=_linear(weights, name + "intermediate.dense"),
        outer=_linear(weights, name + "output.dense"),
        outer_norm=_norm(weights, name + "output.LayerNorm", config),
    )


def _linear(weights: Weights, *names: str) -> Linear:
    """The linear layers `names`, side by side."""
    weight = mx.concatenate([weights[f"{name}.weight"] for name in names], axis=0)
    bias = mx.concatenate([weights[f"{name}.bias"] for name in names], axis=0)
    return Linear(weight.T, bias)


def _norm(weights: Weights, name: str, config: EncoderConfig) -> Norm:
    return Norm(weights[f"{name}.weight"], weights[f"{name}.bias"], config.norm_eps)
