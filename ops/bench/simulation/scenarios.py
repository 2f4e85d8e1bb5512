"""What happens to the machines during a run, as fates; times are shares of the steady bound."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from ops.bench.simulation.machine import Fate
from ops.bench.simulation.profiles import Profile

Cast = tuple[list[Profile], list[Fate]]


def _steady(profiles: Sequence[Profile], _: float) -> Cast:
    return list(profiles), [Fate() for _ in profiles]


def _straggler(profiles: Sequence[Profile], steady_s: float) -> Cast:
    """The second fastest falls to 15 % at 85 % of the run."""
    fates = [Fate() for _ in profiles]
    fates[1] = Fate(factors=((0.85 * steady_s, 0.15),))
    return list(profiles), fates


def _death(profiles: Sequence[Profile], steady_s: float) -> Cast:
    """The second fastest dies at 60 % of the run."""
    fates = [Fate() for _ in profiles]
    fates[1] = Fate(dies_s=0.6 * steady_s)
    return list(profiles), fates


def _late(profiles: Sequence[Profile], steady_s: float) -> Cast:
    """The second fastest comes when half of the run is over."""
    fates = [Fate() for _ in profiles]
    fates[1] = Fate(begins_s=0.5 * steady_s)
    return list(profiles), fates


def _drift(profiles: Sequence[Profile], steady_s: float) -> Cast:
    """Each machine grows warm, to between 70 and 100 % of its speed, in twenty steps, and cools again."""
    depths = np.random.default_rng(1).uniform(0.0, 0.3, len(profiles))
    phases = np.random.default_rng(2).uniform(0.0, 1.0, len(profiles))
    times = np.linspace(0, 2 * steady_s, 41)
    fates = []
    for depth, phase in zip(depths.tolist(), phases.tolist(), strict=True):
        factors = 1 - depth * (0.5 - 0.5 * np.cos(2 * np.pi * (times / steady_s + phase)))
        fates.append(Fate(factors=tuple(zip(times.tolist(), factors.tolist(), strict=True))))
    return list(profiles), fates


def _small(profiles: Sequence[Profile], _: float) -> Cast:
    """The slower half cannot hold the longest fifth of the prompts."""
    kept = [replace(p, longest_tokens=2048 + 512) if i >= len(profiles) // 2 else p for i, p in enumerate(profiles)]
    return kept, [Fate() for _ in profiles]


SCENARIOS: dict[str, Callable[[Sequence[Profile], float], Cast]] = {
    "steady": _steady,
    "straggler": _straggler,
    "death": _death,
    "late": _late,
    "drift": _drift,
    "small": _small,
}
