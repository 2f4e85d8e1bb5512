"""What the engines report, added up: totals over restarts, and the rates of the last minute. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import fields, replace

from fleet.messages import Figures

#: Rates are taken over this much of the recent past, seconds.
WINDOW_S = 60.0
#: Until an engine has reported: tokens per second of a small machine, so that a first window is modest.
FIRST_DECODE_TPS = 100.0
FIRST_PREFILL_TPS = 1000.0


def add(a: Figures, b: Figures) -> Figures:
    """Sum of two engines' counters; of the peaks the larger."""
    summed = Figures(**{f.name: getattr(a, f.name) + getattr(b, f.name) for f in fields(Figures)})
    return replace(summed, peak_bytes=max(a.peak_bytes, b.peak_bytes))


class Throughput:
    """One worker's counters over all the engines it had, and its speed."""

    def __init__(self) -> None:
        self._ended = Figures()
        self._engine = Figures()
        #: (seconds, total) of the last WINDOW_S
        self._recent: deque[tuple[float, Figures]] = deque()
        #: how many times counters have moved on
        self.reports = 0

    @property
    def total(self) -> Figures:
        """Counters since the run began."""
        return add(self._ended, self._engine)

    def report(self, figures: Figures, now_s: float) -> None:
        """Takes an engine's counters; ones that went back belong to a new engine."""
        if figures.steps < self._engine.steps or figures.prompt_tokens < self._engine.prompt_tokens:
            self._ended = add(self._ended, self._engine)
        if figures != self._engine:
            self.reports += 1
        self._engine = figures
        self._recent.append((now_s, self.total))
        while now_s - self._recent[0][0] > WINDOW_S:
            self._recent.popleft()

    @property
    def output_tps(self) -> float:
        """New tokens per second of wall time over the last minute, 0 before two reports."""
        return self._rate(lambda figures: figures.output_tokens)

    @property
    def prompt_tps(self) -> float:
        """Prompt tokens computed per second of wall time over the last minute, 0 before two reports."""
        return self._rate(lambda figures: figures.prompt_tokens)

    @property
    def told_tps(self) -> float:
        """What a person is told as tok/s: new tokens, or those read where no engine has made any, as when it embeds."""
        return self.prompt_tps if self.only_read else self.output_tps

    @property
    def usual_tps(self) -> float:
        """What `told_tps` would be with nothing in the way."""
        return self.prefill_tps if self.only_read else self.decode_tps

    def shown_tps(self, *, embeds: bool) -> float:
        """New tokens per second of decoding, or, where it embeds, tokens read: of the present engine alone, as those
        before it may have had another model. 0 until it has shown something."""
        engine = self._engine
        tokens, busy_s = (engine.prompt_tokens, engine.prefill_s) if embeds else (engine.output_tokens, engine.decode_s)
        return tokens / busy_s if tokens and busy_s else 0.0

    @property
    def only_read(self) -> bool:
        """Whether no engine has made a token yet, and some have read."""
        return self.total.prompt_tokens > 0 and not self.total.steps

    def _rate(self, counter: Callable[[Figures], int]) -> float:
        if len(self._recent) < 2:
            return 0.0
        (then_s, then), (now_s, now) = self._recent[0], self._recent[-1]
        return (counter(now) - counter(then)) / max(now_s - then_s, 1e-9)

    @property
    def decode_tps(self) -> float:
        """Tokens per second while decoding."""
        total = self.total
        return total.output_tokens / total.decode_s if total.output_tokens and total.decode_s else FIRST_DECODE_TPS

    @property
    def prefill_tps(self) -> float:
        """Tokens per second while computing prompts."""
        total = self.total
        return total.prompt_tokens / total.prefill_s if total.prompt_tokens and total.prefill_s else FIRST_PREFILL_TPS
