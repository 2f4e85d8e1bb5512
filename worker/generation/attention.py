"""Attention row by row in a decode step, for models that call mlx-lm's attention with a cache of ours."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import mlx.core as mx
from mlx_lm.models import base

from worker.generation.kernel import Kernel, cuda_kernel, fits
from worker.generation.slots import KVSlots

_NAME = "scaled_dot_product_attention"


class RowAttention:
    """Lends a model's layers a kernel to which a row's columns are a span and not a mask."""

    def __init__(
        self, model: Any, kernel: Kernel, *, fits: Callable[[mx.array, mx.array, mx.array], bool] = fits
    ) -> None:
        """`fits` says of (queries, keys, values) whether the kernel does them; others go mlx-lm's way."""
        self._kernel = kernel
        self._fits = fits
        self._modules = _callers(model)
        self._scales: dict[float, mx.array] = {}

    @contextmanager
    def lent(self) -> Iterator[None]:
        """While it lasts the layers use the kernel where it does what they ask for."""
        for module in self._modules:
            setattr(module, _NAME, self._attend)
        try:
            yield
        finally:
            for module in self._modules:
                setattr(module, _NAME, base.scaled_dot_product_attention)

    def _attend(
        self,
        queries: mx.array,
        keys: mx.array,
        values: mx.array,
        cache: Any,
        scale: float,
        mask: mx.array | None,
        sinks: mx.array | None = None,
    ) -> mx.array:
        """As mlx-lm's function of that name."""
        spans = cache.spans(mask) if isinstance(cache, KVSlots) and sinks is None else None
        if spans is None or not self._fits(queries, keys, values):
            usual: mx.array = base.scaled_dot_product_attention(queries, keys, values, cache, scale, mask, sinks)
            return usual
        if scale not in self._scales:
            self._scales[scale] = mx.array([scale], dtype=mx.float32)
        return self._kernel(queries, keys, values, spans, self._scales[scale])


def row_attention(model: Any) -> RowAttention | None:
    """The attention that decodes unequal rows faster than MLX's; None where MLX's own is best.

    On Metal it is: the kernel for one query takes a mask, and does not read what that hides.
    """
    kernel = cuda_kernel()
    return RowAttention(model, kernel) if kernel else None


def _callers(model: Any) -> tuple[ModuleType, ...]:
    """The modules of the model's layers that have mlx-lm's attention under its name."""
    modules = {type(layer).__module__: sys.modules[type(layer).__module__] for layer in model.modules()}
    usual = base.scaled_dot_product_attention
    return tuple(module for module in modules.values() if getattr(module, _NAME, None) is usual)
