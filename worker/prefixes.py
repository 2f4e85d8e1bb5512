"""Computed prefixes that rows to come may begin with: the last ones used, bounded by their memory."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence

import numpy as np

from worker.generation.prefill import Prefix

#: Computes a prefix of these tokens; None where rows cannot begin with one.
Compute = Callable[[Sequence[int]], Prefix | None]


class PrefixStore:
    """Gives each prefix its computed state. The least recently used ones go when there is no room for another."""

    def __init__(self, compute: Compute, *, limit_bytes: int, kv_bytes: int) -> None:
        """`kv_bytes` a token; a prefix over `limit_bytes` is not kept at all."""
        self._compute = compute
        self._limit_bytes = limit_bytes
        self._kv_bytes = kv_bytes
        self._held: OrderedDict[bytes, Prefix] = OrderedDict()

    @property
    def nbytes(self) -> int:
        """Bytes that the prefixes held take."""
        return sum(prefix.nbytes for prefix in self._held.values())

    def clear(self) -> None:
        """Lets go of them all; they are computed again when they are needed."""
        self._held.clear()

    def get(self, tokens: bytes) -> Prefix | None:
        """The state after `tokens` (uint32, little endian), computed when it is not there; None to do without."""
        found = self._held.get(tokens)
        if found is None:
            found = self._make(tokens)
        if found is not None:
            self._held[tokens] = found
            self._held.move_to_end(tokens)
        return found

    def _make(self, tokens: bytes) -> Prefix | None:
        ids = unpack(tokens)
        need_bytes = len(ids) * self._kv_bytes
        if not ids or need_bytes > self._limit_bytes:
            return None
        while self._held and self.nbytes + need_bytes > self._limit_bytes:
            self._held.popitem(last=False)
        return self._compute(ids)


def unpack(tokens: bytes) -> list[int]:
    """Token ids of packed `tokens`."""
    ids: list[int] = np.frombuffer(tokens, dtype="<u4").tolist()
    return ids
