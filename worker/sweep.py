"""Measures a length bucket, sample by sample, as long as it may."""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx

from worker.caps import Caps
from worker.gauge import Gauge
from worker.knee import fill_tokens
from worker.knee_store import KneeStore
from worker.memory import KV_STEP_TOKENS, is_shortage


class Sweep:
    """Takes the samples that `caps` wants, and keeps what they gave."""

    def __init__(self, gauge: Gauge, caps: Caps, store: KneeStore) -> None:
        self._gauge = gauge
        self._caps = caps
        self._store = store

    @property
    def peak_bytes(self) -> int:
        """Most bytes MLX held while a sample was taken."""
        return self._gauge.peak_bytes

    def can(self, bucket: int, free_tokens: int) -> bool:
        """Whether there is a sample to take with so many tokens of KV free."""
        caps = self._caps
        return caps.next_rows(bucket, _rows(bucket, free_tokens)) is not None or caps.next_setting(bucket) is not None

    def run(self, bucket: int, free_tokens: int, go_on: Callable[[], bool]) -> None:
        """Takes samples until the bucket is measured, or `go_on`, asked before each, says no.

        Running out of memory ends the sweep; any other error is the caller's.
        """
        self._caps.begin(bucket)
        try:
            self._run(bucket, _rows(bucket, free_tokens), go_on)
        except (RuntimeError, MemoryError) as error:
            if not is_shortage(error):
                raise
            self._caps.ran_out(bucket)
            mx.clear_cache()

    def save(self) -> None:
        """Puts what changed on disk."""
        if changed := self._caps.take_unsaved():
            self._store.save(changed)

    def _run(self, bucket: int, free_rows: int, go_on: Callable[[], bool]) -> None:
        caps, tokens = self._caps, fill_tokens(bucket)
        while (rows := caps.next_rows(bucket, free_rows)) is not None and go_on():
            caps.sampled(bucket, self._gauge.decode(rows, tokens))
        while (setting := caps.next_setting(bucket)) is not None and go_on():
            caps.sampled_prefill(bucket, self._gauge.prefill(setting, tokens, caps.bounds.most.rows))


def _rows(bucket: int, free_tokens: int) -> int:
    """Made-up rows that fit; each grows by a step of its buffers."""
    return free_tokens // (fill_tokens(bucket) + KV_STEP_TOKENS)
