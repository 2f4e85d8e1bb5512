"""Which of two ways to do a step is faster on this machine, found while the work goes on."""

from __future__ import annotations

import statistics
from collections.abc import Hashable

#: Steps that go one way before it is the other's turn; the first ones also carry what the turn before left behind.
TURN_STEPS, SKIPPED_STEPS = 6, 2
#: Turns until the contest is decided, the first way's and the second's.
TURNS = 6


class Contest:
    """For each kind of step lets the two ways take turns, and keeps to the faster one from then on."""

    def __init__(self) -> None:
        self._kind: Hashable = None
        # seconds of a kind's steps so far
        self._took: dict[Hashable, list[float]] = {}
        self._second_won: dict[Hashable, bool] = {}

    def second(self, kind: Hashable) -> bool:
        """Whether the next step, of this kind, goes the second way; never for the kind None, which has but one way."""
        self._kind = kind
        if kind is None:
            return False
        if kind in self._second_won:
            return self._second_won[kind]
        return _is_second(len(self._took.get(kind, ())))

    def took(self, seconds: float) -> None:
        """How long the step took that `second` was last asked about."""
        if self._kind is None or self._kind in self._second_won:
            return
        took = self._took.setdefault(self._kind, [])
        took.append(seconds)
        if len(took) == TURNS * TURN_STEPS:
            self._second_won[self._kind] = _median(took, second=True) < _median(took, second=False)
            del self._took[self._kind]


def _is_second(step: int) -> bool:
    return step // TURN_STEPS % 2 == 1


def _median(took: list[float], *, second: bool) -> float:
    """Seconds of a step that went the one way or the other; the middle one, since a pause may fall on any."""
    kept = [s for i, s in enumerate(took) if _is_second(i) is second and i % TURN_STEPS >= SKIPPED_STEPS]
    return statistics.median(kept)
