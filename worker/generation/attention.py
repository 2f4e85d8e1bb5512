"""A decode step's attention, for models that call mlx-lm's with a cache of ours: row by row, or a shared part once."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import mlx.core as mx
from mlx_lm.models import base

from worker.generation.kernel import Kernel, cuda_kernel, fits
from worker.generation.shared import attend_shared
from worker.generation.slots import KVSlots

_NAME = "scaled_dot_product_attention"


class StepAttention:
    """Lends a model's layers what may do their attention faster than mlx-lm's own."""

    def __init__(
        self,
        model: Any,
        kernel: Kernel | None = None,
        *,
        fits: Callable[[mx.array, mx.array, mx.array], bool] = fits,
    ) -> None:
        """`kernel` takes a row's columns as a span, not a mask; `fits` says whether it does (queries, keys, values)."""
        self._kernel = kernel
        self._fits = fits
        self._modules = _callers(model)
        self._scales: dict[float, mx.array] = {}
        self._sharing = False

    @contextmanager
    def lent(self, *, sharing: bool) -> Iterator[None]:
        """While it lasts the layers use the kernel, or with `sharing` read once what all rows share."""
        self._sharing = sharing
        modules = self._modules if sharing or self._kernel else ()
        for module in modules:
            setattr(module, _NAME, self._attend)
        try:
            yield
        finally:
            for module in modules:
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
        """As mlx-lm's function of that name, which does what neither of ours can."""
        made = None
        if isinstance(cache, KVSlots) and sinks is None:
            made = self._shared(queries, keys, values, cache, scale, mask) if self._sharing else None
            if made is None:
                made = self._by_row(queries, keys, values, cache, scale, mask)
        if made is not None:
            return made
        usual: mx.array = base.scaled_dot_product_attention(queries, keys, values, cache, scale, mask, sinks)
        return usual

    def _shared(
        self, queries: mx.array, keys: mx.array, values: mx.array, cache: KVSlots, scale: float, mask: mx.array | None
    ) -> mx.array | None:
        shared, holder = cache.shared(mask)
        if not shared:
            return None
        return attend_shared(queries, keys, values, scale=scale, mask=mask, shared=shared, holder=holder)

    def _by_row(
        self, queries: mx.array, keys: mx.array, values: mx.array, cache: KVSlots, scale: float, mask: mx.array | None
    ) -> mx.array | None:
        spans = cache.spans(mask) if self._kernel else None
        if self._kernel is None or spans is None or not self._fits(queries, keys, values):
            return None
        if scale not in self._scales:
            self._scales[scale] = mx.array([scale], dtype=mx.float32)
        return self._kernel(queries, keys, values, spans, self._scales[scale])


def step_attention(model: Any) -> StepAttention:
    """What suits the device: a kernel of our own on CUDA.

    Metal needs none: its own kernel for one query takes a mask, and does not read what that hides.
    """
    return StepAttention(model, cuda_kernel())


def _callers(model: Any) -> tuple[ModuleType, ...]:
    """The modules of the model's layers that have mlx-lm's attention under its name."""
    modules = {type(layer).__module__: sys.modules[type(layer).__module__] for layer in model.modules()}
    usual = base.scaled_dot_product_attention
    return tuple(module for module in modules.values() if getattr(module, _NAME, None) is usual)
