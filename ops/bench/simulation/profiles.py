"""Machines as simulated: throughput by batch from measured curves, scaled to the range that is asked for.

The curves have hardly a prompt rate; their note says to assume ten times the rate of a row that decodes alone. That is
1.1 to 5.2 times the rate of a full batch, depending on how much batching gains. Taken machine by machine ("solo") it
makes some machines five times as apt for prompts as others, which no measurement supports; "even" gives all the middle
of these ratios, and then a row is the same amount of work anywhere and the bound is exact.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

CURVES = Path(__file__).resolve().parents[3] / "tests" / "curves.json"
#: Curves of Macs; the others are a GPU's and this machine's own.
MACS = ("m5-max-14b-4bit", "gpt-oss-20b-short", "m3-ultra-9b-4bit", "gpt-oss-20b-long")
KNEE_SHARE = 0.95
PREFILL_OVER_SOLO = 10.0
#: The geometric mean of what that is over a full batch's rate, of the four curves.
PREFILL_OVER_FULL = 2.3
#: Throughput of the fastest machine, and how many times the slowest is slower.
FASTEST_TPS, RANGE = 760.0, 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """One machine at its full speed."""

    name: str
    #: rows that decode together
    cap: int
    #: new tokens per second of one row among n, at index n; index 0 is not used
    row_tps: tuple[float, ...]
    prefill_tps: float
    #: prompt + max_new tokens of the longest row it can hold; 0 for any
    longest_tokens: int = 0

    @property
    def decode_tps(self) -> float:
        """New tokens per second of a full batch."""
        return self.cap * self.row_tps[self.cap]


def _curve(name: str) -> tuple[list[int], list[float]]:
    curves = {curve["name"]: curve for curve in json.loads(CURVES.read_text(encoding="utf-8"))["curves"]}
    return curves[name]["batch"], curves[name]["tok_s"]


def profile(name: str, curve: str, best_tps: float, *, even: bool = True) -> Profile:
    """A machine with the shape of `curve` whose best throughput is `best_tps`."""
    batches, rates = _curve(curve)
    scale = best_tps / max(rates)
    knee = next(batch for batch, rate in zip(batches, rates, strict=True) if rate >= KNEE_SHARE * max(rates))
    counts = np.arange(1, knee + 1)
    totals = scale * np.interp(counts, batches, rates)
    prefill_tps = PREFILL_OVER_FULL * totals[-1] if even else PREFILL_OVER_SOLO * totals[0]
    return Profile(name=name, cap=knee, row_tps=(0.0, *(totals / counts).tolist()), prefill_tps=float(prefill_tps))


def fleet(machines: int, *, even: bool = True) -> list[Profile]:
    """Machines spread evenly, on a logarithmic scale, over the range of speeds."""
    steps = np.linspace(0, 1, machines)
    return [
        profile(f"mac{number:03d}", MACS[number % len(MACS)], FASTEST_TPS * RANGE**-step, even=even)
        for number, step in enumerate(steps.tolist())
    ]
