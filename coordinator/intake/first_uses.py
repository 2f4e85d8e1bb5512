"""Where each custom_id was used first, in 16 bytes an id."""

from __future__ import annotations

import hashlib

import numpy as np

from coordinator.records import Source

#: Ids kept in a dict before they are folded into the sorted arrays.
_RECENT = 1 << 16
#: Bits of a place that hold the line; the file's number stands above.
_LINE_BITS = 40


class FirstUses:
    """Remembers ids by 64 bits of a hash: over 10M of them, a chance of 3 in a million that two unlike ones meet."""

    def __init__(self) -> None:
        self._recent: dict[int, int] = {}
        self._keys = np.empty(0, np.uint64)
        self._places = np.empty(0, np.uint64)
        self._files: dict[str, int] = {}

    def before(self, custom_id: str, source: Source) -> Source | None:
        """Where `custom_id` was used first; None when that is here, which is then remembered."""
        digest = hashlib.blake2b(custom_id.encode("utf-8", "surrogatepass"), digest_size=8).digest()
        key = int.from_bytes(digest, "little")
        place = self._find(key)
        if place is not None:
            return Source(file=list(self._files)[place >> _LINE_BITS], line=place & ((1 << _LINE_BITS) - 1))
        number = self._files.setdefault(source.file, len(self._files))
        self._recent[key] = number << _LINE_BITS | source.line
        if len(self._recent) >= _RECENT:
            self._fold()
        return None

    def _find(self, key: int) -> int | None:
        recent = self._recent.get(key)
        if recent is not None or not len(self._keys):
            return recent
        at = int(np.searchsorted(self._keys, np.uint64(key)))
        return int(self._places[at]) if at < len(self._keys) and int(self._keys[at]) == key else None

    def _fold(self) -> None:
        keys = np.concatenate([self._keys, np.fromiter(self._recent, np.uint64, len(self._recent))])
        places = np.concatenate([self._places, np.fromiter(self._recent.values(), np.uint64, len(self._recent))])
        order = np.argsort(keys, kind="stable")
        self._keys, self._places = keys[order], places[order]
        self._recent = {}
