"""How fast a worker is, from its counters: the last minute counts, and only while its batch was full. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from coordinator.throughput import FIRST_DECODE_TPS, FIRST_PREFILL_TPS
from fleet.messages import Figures

#: Weights of the past, as time constants: the present speed, and the usual one.
FAST_S = 60.0
SLOW_S = 600.0
#: A window tells the speed when its batch was this full, as a share of what admission allows.
FULL_SHARE = 0.9
#: ... and the engine was busy for this share of it.
BUSY_SHARE = 0.5
#: The present speed under this share of the usual one ...
THROTTLED_SHARE = 0.75
#: ... for this long is throttling.
THROTTLED_S = 60.0


@dataclass(slots=True)
class _Rates:
    """Fading sums of tokens and seconds: their quotients weigh windows by length, so uneven beats do no harm."""

    constant_s: float
    output_tokens: float = 0.0
    decode_s: float = 0.0
    prompt_tokens: float = 0.0
    prefill_s: float = 0.0

    def add(self, output_tokens: float, decode_s: float, prompt_tokens: float, prefill_s: float) -> None:
        keep = math.exp(-(decode_s + prefill_s) / self.constant_s)
        self.output_tokens = self.output_tokens * keep + output_tokens
        self.decode_s = self.decode_s * keep + decode_s
        self.prompt_tokens = self.prompt_tokens * keep + prompt_tokens
        self.prefill_s = self.prefill_s * keep + prefill_s

    @property
    def decode_tps(self) -> float:
        return self.output_tokens / self.decode_s if self.output_tokens and self.decode_s else 0.0

    @property
    def prefill_tps(self) -> float:
        return self.prompt_tokens / self.prefill_s if self.prompt_tokens and self.prefill_s else 0.0


class Speed:
    """One worker's speed; counters that went back belong to a new engine."""

    def __init__(self) -> None:
        self._fast = _Rates(FAST_S)
        self._slow = _Rates(SLOW_S)
        self._last = Figures()
        self._last_s: float | None = None
        self._slow_for_s = 0.0
        #: new tokens per second of a row that decodes alone, 0 while not known
        self.solo_tps = 0.0
        #: full windows so far
        self.reports = 0

    @property
    def decode_tps(self) -> float:
        """New tokens per second of decoding in a full batch."""
        return self._fast.decode_tps or FIRST_DECODE_TPS

    @property
    def prefill_tps(self) -> float:
        """Prompt tokens per second of computing prompts."""
        return self._fast.prefill_tps or FIRST_PREFILL_TPS

    @property
    def throttled(self) -> bool:
        """Whether it has been slower than itself for a while."""
        return self._slow_for_s >= THROTTLED_S

    def report(self, figures: Figures, now_s: float) -> None:
        """Takes an engine's counters."""
        last, last_s = self._last, self._last_s
        self._last, self._last_s = figures, now_s
        if last_s is None or figures.steps < last.steps or figures.prompt_tokens < last.prompt_tokens:
            return
        decode_s, prefill_s = figures.decode_s - last.decode_s, figures.prefill_s - last.prefill_s
        busy_s, wall_s = decode_s + prefill_s, now_s - last_s
        rows, cap = figures.step_rows - last.step_rows, figures.step_cap - last.step_cap
        if not busy_s or not cap or busy_s < BUSY_SHARE * wall_s:
            return
        if rows < FULL_SHARE * cap:
            self._partly(figures.steps - last.steps, rows / cap, decode_s)
            return
        # Wall time: what the engine does between its steps is part of its speed.
        stretch = max(wall_s / busy_s, 1.0)
        window = (
            float(figures.output_tokens - last.output_tokens),
            decode_s * stretch,
            float(figures.prompt_tokens - last.prompt_tokens),
            prefill_s * stretch,
        )
        self._fast.add(*window)
        self._slow.add(*window)
        self.reports += 1
        slow = self._fast.decode_tps < THROTTLED_SHARE * self._slow.decode_tps
        self._slow_for_s = self._slow_for_s + busy_s if slow else 0.0

    def _partly(self, steps: int, share: float, decode_s: float) -> None:
        """A window of a batch that was not full: the fewer rows, the nearer its steps are to those of a row alone."""
        if share < 0.5 and decode_s:
            self.solo_tps = max(self.solo_tps, steps / decode_s)
