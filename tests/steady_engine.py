"""Beats of an engine that works evenly, and the speed learnt from them."""

from __future__ import annotations

from coordinator.scheduling.speeds import Speed
from fleet.messages import Figures

CAP = 8


class SteadyEngine:
    """Counters of an engine that works at some speed, and the speed learnt from its beats."""

    def __init__(self) -> None:
        self.speed = Speed()
        self.now_s = 0.0
        #: how often each beat is looked at again before the next
        self.read_again = 0
        self.counted = {"output_tokens": 0.0, "decode_s": 0.0, "steps": 0.0, "step_rows": 0.0, "step_cap": 0.0}
        self.counted |= {"prompt_tokens": 0.0, "prefill_s": 0.0}

    def work(
        self, seconds: float, *, tps: float = 80.0, rows: int = CAP, idle_s: float = 0.0, **state: bool
    ) -> SteadyEngine:
        """A tenth of the time at prompts, at ten times the rate; the rest decoding, and idle before each beat."""
        beat_s = 3.0
        for _ in range(round(seconds / beat_s)):
            self.now_s += beat_s + idle_s
            steps = tps * 0.9 * beat_s / CAP
            self.counted["output_tokens"] += steps * rows
            self.counted["decode_s"] += 0.9 * beat_s
            self.counted["steps"] += steps
            self.counted["step_rows"] += steps * rows
            self.counted["step_cap"] += steps * CAP
            self.counted["prompt_tokens"] += tps * beat_s
            self.counted["prefill_s"] += 0.1 * beat_s
            self.beat(**state)
        return self

    def beat(self, **state: bool) -> None:
        counts = {name: value if name.endswith("_s") else round(value) for name, value in self.counted.items()}
        for again in range(1 + self.read_again):
            self.speed.report(Figures(**counts), self.now_s + again, **state)  # type: ignore[arg-type]
