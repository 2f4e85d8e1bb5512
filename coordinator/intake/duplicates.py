"""Counts how often a key came before, exactly and in 8 bytes a key."""

from __future__ import annotations

import numpy as np

#: Keys counted in a dict before they are folded into the sorted array.
_RECENT = 1 << 16


class Duplicates:
    """`ordinal(key)` is 0 for a key's first time, 1 for its second, ..."""

    def __init__(self) -> None:
        self._recent: dict[int, int] = {}
        self._recent_total = 0
        self._sorted = np.empty(0, np.uint64)

    def ordinal(self, key: bytes) -> int:
        """How often `key` (random bytes, 8 or more) came before."""
        short = int.from_bytes(key[:8], "little")
        times = self._recent.get(short, 0)
        self._recent[short] = times + 1
        self._recent_total += 1
        before = int(np.searchsorted(self._sorted, np.uint64(short), "right"))
        before -= int(np.searchsorted(self._sorted, np.uint64(short), "left"))
        if self._recent_total >= _RECENT:
            self._fold()
        return before + times

    def _fold(self) -> None:
        recent = np.fromiter(self._recent, np.uint64, len(self._recent))
        times = np.fromiter(self._recent.values(), np.int64, len(self._recent))
        together = np.concatenate([self._sorted, np.sort(np.repeat(recent, times))])
        together.sort(kind="stable")  # two ascending runs: merged in one pass
        self._sorted = together
        self._recent, self._recent_total = {}, 0
