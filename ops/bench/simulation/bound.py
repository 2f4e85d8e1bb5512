"""What no policy can beat: all machines busy at their calibrated speed until the last token, rows cut at will.

A row costs `answer / decode + prompt / prefill` seconds on a machine, so machines that compute prompts relatively
fast should have the rows with relatively long prompts. With rows in that order and machines in that order the best
division is a cut of one along the other; `T*` is the least time in which all rows find a place.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ops.bench.simulation.machine import Fate
from ops.bench.simulation.profiles import Profile
from ops.bench.simulation.workload import Workload

#: `T*` is found to within this share.
EXACT = 1e-6
#: The order of rows is cut into this many pieces of equal rows each.
PIECES = 1000


def bound_s(workload: Workload, profiles: Sequence[Profile], fates: Sequence[Fate]) -> float:
    """`max(T*, longest row on the fastest machine)`."""
    solo = max(profile.row_tps[1] for profile in profiles)
    longest_s = float(workload.answers.max()) / solo
    fits = _Division(workload, profiles, fates).fits
    low, high = 0.0, 1.0
    while not fits(high):
        low, high = high, 2 * high
    while high - low > EXACT * high:
        middle = (low + high) / 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return max(high, longest_s)


class _Division:
    """Rows and machines, each in the order of how much prompts weigh with them."""

    def __init__(self, workload: Workload, profiles: Sequence[Profile], fates: Sequence[Fate]) -> None:
        order = np.argsort(-(workload.prompts / workload.answers))
        pieces = np.linspace(0, len(order), PIECES + 1).astype(np.int64)
        self._places = pieces.astype(float)
        self._prompts = np.concatenate([[0.0], np.cumsum(workload.prompts[order], dtype=float)])[pieces]
        self._answers = np.concatenate([[0.0], np.cumsum(workload.answers[order], dtype=float)])[pieces]
        pairs = zip(profiles, fates, strict=True)
        self._machines = sorted(pairs, key=lambda pair: -pair[0].prefill_tps / pair[0].decode_tps)

    def fits(self, time_s: float) -> bool:
        """Whether all rows find a place within a time."""
        done = 0.0
        for profile, fate in self._machines:
            cost_s = self._answers / profile.decode_tps + self._prompts / profile.prefill_tps
            start_s = float(np.interp(done, self._places, cost_s))
            done = float(np.interp(start_s + work_s(fate, time_s), cost_s, self._places))
        return done >= self._places[-1]


def work_s(fate: Fate, until_s: float) -> float:
    """Seconds at full speed that a machine gives until a moment."""
    until_s = min(until_s, fate.dies_s)
    at_s, total = fate.begins_s, 0.0
    while at_s < until_s:
        factor, change_s = fate.factor(at_s)
        stop_s = min(change_s, until_s)
        total += factor * (stop_s - at_s)
        at_s = stop_s
    return total
