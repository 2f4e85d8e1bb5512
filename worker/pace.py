"""How fast the engine decodes against what was measured: a slow drift corrects the figure, a sudden fall is throttling.
Pure."""

from __future__ import annotations

import math

#: Weights of the past, as time constants: the present pace, and the usual one.
FAST_S = 60.0
SLOW_S = 600.0
#: The present pace under this share of the usual one ...
THROTTLED_SHARE = 0.75
#: ... for this long is throttling.
THROTTLED_S = 60.0


class Pace:
    """Real throughput over the measured one, of one length bucket."""

    def __init__(self, usual: float) -> None:
        """`usual` is what earlier runs learnt; 1 before any."""
        #: of the last minute or so
        self.now = usual
        #: of the last ten minutes or so; what a figure is corrected by
        self.usual = usual
        self._slow_for_s = 0.0
        self._observed_s = 0.0

    def observe(self, ratio: float, seconds: float) -> None:
        """A steady window of `seconds` in which throughput was `ratio` of the measured one."""
        self.now += self._weight(seconds, FAST_S) * (ratio - self.now)
        self.usual += self._weight(seconds, SLOW_S) * (ratio - self.usual)
        self._observed_s += seconds
        slow = self.now < THROTTLED_SHARE * self.usual
        self._slow_for_s = self._slow_for_s + seconds if slow else 0.0

    @property
    def throttled(self) -> bool:
        """Whether the machine has been slower than itself for a while."""
        return self._slow_for_s >= THROTTLED_S

    def _weight(self, seconds: float, constant_s: float) -> float:
        """How much a window counts: as in a mean until `constant_s` were observed, then fading."""
        total = self._observed_s + seconds
        return max(seconds / total if total < constant_s else 0.0, 1 - math.exp(-seconds / constant_s))
