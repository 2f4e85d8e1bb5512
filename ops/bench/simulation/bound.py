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


def bound_s(workload: Workload, profiles: Sequence[Profile], fates: Sequence[Fate]) -> float:
    """`max(T*, longest row on the fastest machine)`."""
    solo = max(profile.row_tps[1] for profile in profiles)
    longest_s = float(workload.answers.max()) / solo
    low, high = 0.0, 1.0
    while not _fits(workload, profiles, fates, high):
        low, high = high, 2 * high
    while high - low > EXACT * high:
        middle = (low + high) / 2
        low, high = (low, middle) if _fits(workload, profiles, fates, middle) else (middle, high)
    return max(high, longest_s)


def _fits(workload: Workload, profiles: Sequence[Profile], fates: Sequence[Fate], time_s: float) -> bool:
    ratio = workload.prompts / workload.answers
    order = np.argsort(-ratio)
    prompts = np.concatenate([[0.0], np.cumsum(workload.prompts[order], dtype=float)])
    answers = np.concatenate([[0.0], np.cumsum(workload.answers[order], dtype=float)])
    rows = np.arange(len(prompts), dtype=float)
    done = 0.0
    by_prompts = sorted(zip(profiles, fates, strict=True), key=lambda pair: -pair[0].prefill_tps / pair[0].decode_tps)
    for profile, fate in by_prompts:
        cost = answers / profile.decode_tps + prompts / profile.prefill_tps
        start_s = float(np.interp(done, rows, cost))
        done = float(np.interp(start_s + work_s(fate, time_s), cost, rows))
        if done >= rows[-1]:
            return True
    return False


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
