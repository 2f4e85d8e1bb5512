"""How fast a worker is, from its counters: the last minute counts, and only while its batch was full. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fleet.messages import Figures

#: Until an engine has reported: tokens per second of a small machine, so that a first window is modest.
FIRST_DECODE_TPS = 100.0
FIRST_PREFILL_TPS = 1000.0
#: Weights of the past, as time constants: the present speed, and the usual one.
FAST_S = 60.0
SLOW_S = 600.0
#: A window tells the speed when its batch was this full, as a share of what admission allows.
FULL_SHARE = 0.9
#: ... and the engine was busy for this share of it.
BUSY_SHARE = 0.5
#: A batch filled to less than this tells how fast a row is that decodes nearly alone.
PART_SHARE = 0.5
#: The present speed under this share of the usual one ...
THROTTLED_SHARE = 0.75
#: ... for this long is throttling.
THROTTLED_S = 60.0


class _Window:
    """What an engine did between two beats."""

    def __init__(self, then: Figures, now: Figures, wall_s: float) -> None:
        #: counters that went back belong to a new engine: it began from nothing, nobody knows when
        self.is_anew = now.steps < then.steps or now.prompt_tokens < then.prompt_tokens
        self.wall_s = wall_s
        self.output_tokens = now.output_tokens - then.output_tokens
        self.prompt_tokens = now.prompt_tokens - then.prompt_tokens
        self.decode_s = now.decode_s - then.decode_s
        self.prefill_s = now.prefill_s - then.prefill_s
        self.steps = now.steps - then.steps
        self.rows = now.step_rows - then.step_rows
        self.cap = now.step_cap - then.step_cap
        self.busy_s = self.decode_s + self.prefill_s

    def is_full(self, *, waited: bool) -> bool:
        """Whether it tells the speed. An encoder has no steps: it is as fast as it is whenever it works."""
        if self.is_anew or self.wall_s <= 0 or self.busy_s <= 0:
            return False
        if not self.steps:
            return self.prompt_tokens > 0
        return self.busy_s >= BUSY_SHARE * self.wall_s and (waited or self.rows >= FULL_SHARE * self.cap)

    @property
    def passed_s(self) -> float:
        """Wall time that counts as work; an encoder's is what it says, as it works by fits and starts."""
        return self.wall_s if self.steps else self.busy_s


@dataclass(slots=True)
class _Rates:
    """Fading sums of tokens and seconds: their quotients weigh windows by length, so uneven beats do no harm."""

    constant_s: float
    output_tokens: float = 0.0
    decode_s: float = 0.0
    prompt_tokens: float = 0.0
    prefill_s: float = 0.0
    passed_s: float = 0.0

    def add(self, window: _Window) -> None:
        keep = math.exp(-window.wall_s / self.constant_s)
        self.output_tokens = self.output_tokens * keep + window.output_tokens
        self.decode_s = self.decode_s * keep + window.decode_s
        self.prompt_tokens = self.prompt_tokens * keep + window.prompt_tokens
        self.prefill_s = self.prefill_s * keep + window.prefill_s
        self.passed_s = self.passed_s * keep + window.passed_s

    @property
    def _stretch(self) -> float:
        """Seconds of wall time for each at work: what an engine does between its steps is part of its speed. Of all
        windows together: one alone is up to a second longer or shorter than what its counters are about."""
        return max(self.passed_s / (self.decode_s + self.prefill_s), 1.0)

    @property
    def decode_tps(self) -> float:
        return self.output_tokens / self.decode_s / self._stretch if self.output_tokens and self.decode_s else 0.0

    @property
    def prefill_tps(self) -> float:
        return self.prompt_tokens / self.prefill_s / self._stretch if self.prompt_tokens and self.prefill_s else 0.0

    def seconds(self, output_tokens: float, prompt_tokens: float) -> float:
        """For this work, at these rates; what has no rate takes no time."""
        decode_s = output_tokens / self.decode_tps if self.decode_tps else 0.0
        return decode_s + (prompt_tokens / self.prefill_tps if self.prefill_tps else 0.0)


class Speed:
    """One worker's speed with one model."""

    def __init__(self, decode_tps: float = 0.0, prefill_tps: float = 0.0) -> None:
        """What was measured in an earlier run, 0 where nothing was; it counts until there is better."""
        #: what counts before the first full window: that, or the best that a part-filled batch has shown
        self._first = decode_tps or FIRST_DECODE_TPS, prefill_tps or FIRST_PREFILL_TPS
        self._fast = _Rates(FAST_S)
        self._slow = _Rates(SLOW_S)
        self._last = Figures()
        self._last_s: float | None = None
        self._waited = self._steady = False
        self._slow_for_s = 0.0
        #: new tokens per second of a row that decodes alone, 0 while not known
        self.solo_tps = 0.0
        #: full windows so far
        self.reports = 0

    @property
    def decode_tps(self) -> float:
        """New tokens per second of decoding in a full batch."""
        return self._fast.decode_tps or self._first[0]

    @property
    def prefill_tps(self) -> float:
        """Prompt tokens per second of computing prompts."""
        return self._fast.prefill_tps or self._first[1]

    @property
    def pace(self) -> float:
        """The present speed over the usual one, for work as it has been of late."""
        work = self._fast.output_tokens, self._fast.prompt_tokens
        now_s = self._fast.seconds(*work)
        return self._slow.seconds(*work) / now_s if now_s else 1.0

    @property
    def throttled(self) -> bool:
        """Whether it has been slower than itself for a while."""
        return self._slow_for_s >= THROTTLED_S

    def report(self, figures: Figures, now_s: float, *, waits: bool = False, steady: bool = True) -> None:
        """Takes an engine's counters. `waits`: rows wait for a place, so the batch is as full as admission lets it
        be; `steady`: it does nothing but work."""
        if figures == self._last and self._last_s is not None:
            # a beat read twice, or one that came between two words of the engine: the window goes on
            self._waited, self._steady = self._waited and waits, self._steady and steady
            return
        window = _Window(self._last, figures, 0.0 if self._last_s is None else now_s - self._last_s)
        full = steady and self._steady and window.is_full(waited=waits and self._waited)
        self._last, self._last_s, self._waited, self._steady = figures, now_s, waits, steady
        if full:
            self._learn(window)
        elif not window.is_anew:
            self._learn_part(window)

    def _learn_part(self, window: _Window) -> None:
        """A full batch is at least as fast as this one. Taken for slower than that, a machine would be sent too little
        to fill its batch, and never show what it can do."""
        decode_tps, prefill_tps = self._first
        if window.decode_s > 0:
            decode_tps = max(decode_tps, window.output_tokens / window.decode_s)
            if window.rows < PART_SHARE * window.cap:
                self.solo_tps = max(self.solo_tps, window.steps / window.decode_s)
        if window.prefill_s > 0:
            prefill_tps = max(prefill_tps, window.prompt_tokens / window.prefill_s)
        self._first = decode_tps, prefill_tps

    def _learn(self, window: _Window) -> None:
        self._fast.add(window)
        self._slow.add(window)
        self.reports += 1
        self._slow_for_s = self._slow_for_s + window.wall_s if self.pace < THROTTLED_SHARE else 0.0
