"""Measures a length bucket, sample by sample, as long as it may."""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx

from worker.caps import Caps
from worker.gauge import Gauge
from worker.knee import fill_tokens
from worker.memory import is_shortage


def sweep(gauge: Gauge, caps: Caps, bucket: int, *, free_rows: int, prompts: int, go_on: Callable[[], bool]) -> None:
    """Takes samples until the bucket is measured, or `go_on`, asked before each, says no.

    `free_rows` made-up rows fit in memory now; `prompts` are computed for a prefill sample. Running out of memory
    ends the sweep, any other error is the caller's.
    """
    tokens = fill_tokens(bucket)
    try:
        while (rows := caps.next_rows(bucket, free_rows)) is not None:
            if not go_on():
                return
            caps.sampled(bucket, gauge.decode(rows, tokens))
        while (setting := caps.next_setting(bucket)) is not None:
            if not go_on():
                return
            caps.sampled_prefill(bucket, gauge.prefill(setting, tokens, prompts))
    except (RuntimeError, MemoryError) as error:
        if not is_shortage(error):
            raise
        caps.ran_out(bucket)
        mx.clear_cache()
