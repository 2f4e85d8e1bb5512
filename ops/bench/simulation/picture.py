"""Draws runs: one row per worker over time, filled by the share of its batch that decodes, so that idle tails show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

#: Runs side by side, and workers drawn of a large fleet.
COLUMNS, WORKERS = 2, 40


#: Worker -> (seconds, rows that decode from then on).
Traces = Mapping[str, Sequence[tuple[float, int]]]


def draw(scenario: str, caps: Mapping[str, int], runs: Mapping[str, tuple[float, float, Traces]], path: Path) -> None:
    """`runs`: policy -> (makespan, bound, traces)."""
    rows = -(-len(runs) // COLUMNS)
    figure, axes = plt.subplots(rows, COLUMNS, figsize=(7 * COLUMNS, 2.6 * rows), squeeze=False)
    for axis, (policy, (makespan_s, bound_s, traces)) in zip(axes.flat, runs.items(), strict=False):
        names = sorted(traces)[:: -(-len(traces) // WORKERS)]
        for place, name in enumerate(reversed(names)):
            times, decoding = zip(*[(0.0, 0), *traces[name], (makespan_s, 0)], strict=True)
            heights = place + 0.9 * np.array(decoding) / caps[name]
            axis.fill_between(times, place, heights, step="post", linewidth=0)
        axis.axvline(bound_s, color="black", linestyle=":", linewidth=1)
        axis.set_yticks([place + 0.45 for place in range(len(names))], reversed(names), fontsize=6)
        axis.set_xlim(0, makespan_s)
        axis.set_title(f"{policy}: {makespan_s:.0f} s, {makespan_s / bound_s:.3f} of the bound (dotted)", fontsize=9)
    for axis in list(axes.flat)[len(runs) :]:
        axis.axis("off")
    figure.suptitle(f"{scenario}: share of its batch that each worker decodes, over seconds")
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)
