"""What sides of a comparison took, and how it is told."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

#: A side that spreads more than this over its rounds says nothing.
MAX_SPREAD = 0.10
#: Wall and CPU seconds.
Taken = tuple[float, float]


def timed(work: Callable[[], Any]) -> Taken:
    """How long `work` takes."""
    started = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - started[0], time.process_time() - started[1]


def summary(taken: Sequence[Taken], texts: int, tokens: int) -> dict[str, Any]:
    """Medians after the first round, and how far they can be trusted."""
    walls, cpus = ([round_[at] for round_ in taken[1:]] for at in (0, 1))
    wall, cpu = statistics.median(walls), statistics.median(cpus)
    return {
        "wall_s": wall,
        "cpu_s": cpu,
        "texts_per_s": texts / wall,
        "tokens_per_s": tokens / wall,
        "spread": (max(walls) - min(walls)) / wall,
        "cpu_spread": (max(cpus) - min(cpus)) / cpu,
    }


def table(sides: dict[str, dict[str, Any]]) -> list[str]:
    """A line for each side, beside the one called "ours"."""
    mine, lines = sides["ours"], []
    for name, side in sides.items():
        noisy = "" if steady(side) else "  (too noisy to report)"
        wall, cpu = side["wall_s"], side["cpu_s"]
        lines.append(
            f"{name:<38} {side['texts_per_s']:8.1f} texts/s {side['tokens_per_s']:9,.0f} tok/s  "
            f"wall {wall:7.2f} s (x{wall / mine['wall_s']:.2f})  cpu {cpu:7.2f} s (x{cpu / mine['cpu_s']:.2f})  "
            f"spread {side['spread']:.0%}/{side['cpu_spread']:.0%}{noisy}"
        )
    return lines


def steady(side: dict[str, Any]) -> bool:
    """Whether a side's rounds are alike enough to be reported."""
    return bool(max(side["spread"], side["cpu_spread"]) <= MAX_SPREAD)
