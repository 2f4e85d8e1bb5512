"""First tokens that many rows share, so that an engine computes them once. Pure.

They are looked for in the first rows of a job and then stay as they are: what is found later would only make engines
compute more of them. A row's key does not depend on them, nor does its answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from coordinator.records import StoredRow

#: Shorter prefixes are not worth a shard of their own; nor is a longer one that adds less than this to another.
LEAST_TOKENS = 64
#: Rows that have to share a prefix: so many, ...
LEAST_ROWS = 8
#: ... and this share of the sample.
LEAST_SHARE = 0.02
#: Rows looked at, ...
SAMPLE_ROWS = 1_000
#: ... or fewer when they are long, bytes of tokens.
SAMPLE_BYTES = 32 << 20
_TOKEN_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefixes:
    """The prefixes in use, uint32 little endian, longest first."""

    tokens: tuple[bytes, ...] = ()
    #: prompt tokens left to compute when the prefixes are, as a share of the sample's
    computed_share: float = 1.0

    def of(self, prompt: bytes) -> bytes:
        """The longest prefix that `prompt` begins with and goes on after; empty for none."""
        size = len(prompt)
        return next((prefix for prefix in self.tokens if len(prefix) < size and prompt.startswith(prefix)), b"")

    def split(self, rows: Iterable[StoredRow]) -> dict[bytes, list[StoredRow]]:
        """The rows by their prefix, in their order."""
        groups: dict[bytes, list[StoredRow]] = {}
        for row in rows:
            groups.setdefault(self.of(row.tokens), []).append(row)
        return groups


NO_PREFIXES = Prefixes()


class PrefixSearch:
    """Collects a job's first prompts and finds their prefixes: anew with each that comes, until there are enough."""

    def __init__(self, *, share: bool = True) -> None:
        #: what is known now
        self.found = NO_PREFIXES
        #: True once `found` stays as it is
        self.frozen = not share
        self._sample: list[bytes] = []
        self._bytes = 0

    def add(self, prompts: Iterable[bytes]) -> None:
        """Takes more prompts, uint32 little endian; those beyond the sample are not looked at."""
        if self.frozen:
            return
        for prompt in prompts:
            self._sample.append(prompt)
            self._bytes += len(prompt)
            if len(self._sample) >= SAMPLE_ROWS or self._bytes >= SAMPLE_BYTES:
                self.freeze()
                return
        self.found = find_prefixes(self._sample)

    def freeze(self) -> None:
        """No more prompts are looked at."""
        if not self.frozen:
            self.found = find_prefixes(self._sample)
            self.frozen = True
            self._sample = []


def find_prefixes(prompts: Sequence[bytes]) -> Prefixes:
    """The prefixes worth sharing among `prompts`, uint32 little endian."""
    ordered = sorted(prompts)  # what begins alike is then side by side
    rows = len(ordered)
    shared = np.array([_shared_tokens(a, b) for a, b in pairwise(ordered)], dtype=np.int64)
    least_rows = max(LEAST_ROWS, int(np.ceil(LEAST_SHARE * rows)))
    # tokens of the longest prefix that each row has so far
    best = np.zeros(rows, dtype=np.int64)
    groups: list[tuple[int, int, int]] = []
    todo = [(0, rows, 0)]
    while todo:
        start, end, parent = todo.pop()
        for first, last in _runs(shared, start, end, parent + LEAST_TOKENS):
            if last - first < least_rows:
                continue
            length = int(shared[first : last - 1].min())
            best[first:last] = length
            groups.append((first, last, length))
            todo.append((first, last, length))
    # one that nearly all its rows leave for a longer one is not worth shards of its own
    used = {(first, length) for first, last, length in groups if (best[first:last] == length).sum() >= LEAST_ROWS}
    tokens = sorted({ordered[first][: length * _TOKEN_BYTES] for first, length in used}, key=len, reverse=True)
    return Prefixes(tokens=tuple(tokens), computed_share=_computed_share(ordered, tokens))


def _runs(shared: NDArray[np.int64], start: int, end: int, least: int) -> list[tuple[int, int]]:
    """Ranges of rows inside [start, end) whose neighbours share at least `least` tokens."""
    joined = np.concatenate([[False], shared[start : end - 1] >= least, [False]])
    changes = np.flatnonzero(np.diff(joined.astype(np.int8)))
    return [(start + int(a), start + int(b) + 1) for a, b in zip(changes[::2], changes[1::2], strict=True)]


def _shared_tokens(a: bytes, b: bytes) -> int:
    """First tokens that both have, but never all of either: a row must have one left to compute."""
    most = min(len(a), len(b)) // _TOKEN_BYTES
    if not most:
        return 0
    unequal = np.frombuffer(a, np.uint32, most) != np.frombuffer(b, np.uint32, most)
    first = int(unequal.argmax())
    return first if unequal[first] else most - 1


def _computed_share(prompts: Sequence[bytes], prefixes: Sequence[bytes]) -> float:
    known = Prefixes(tokens=tuple(prefixes))
    total = sum(map(len, prompts))
    return 1 - sum(len(known.of(prompt)) for prompt in prompts) / total if total else 1.0
