"""The pool of open rows: 16 bytes a row, longest first, so that a shard's rows are nearly equally long. Pure.

Rows lie in pools by (total length, prompt length) class and sampling group. Classes are an eighth of an octave wide,
so rows of one differ by 9 % at most: sorted neighbours pad far less, and a shard that spans two classes little more.
Total length comes first, since what runs last should be short, or what is expected of it once answers tell; prompt
length second, since prompts are what is padded.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from coordinator.records import OpenRow

#: Classes an octave of length is cut into.
CLASSES = 8
#: Classes are put in order anew when so many times as many answers are known.
KNOWN_MORE = 1.5
_NO_LIMIT = 1 << 62

_ROW = np.dtype([("id", "<i8"), ("length", "<u4"), ("max_tokens", "<u4")])
_FIELDS = attrgetter("id", "length", "max_tokens", "sampling")

Rows = NDArray[np.void]
#: (class of total length, class of prompt length)
Class = tuple[int, int]
#: (prompt tokens, new tokens it may make) -> what a row is expected to cost
Cost = Callable[[int, int], float]


def _classes(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    classes: NDArray[np.int64] = np.floor(np.log2(np.maximum(lengths, 1)) * CLASSES).astype(np.int64)
    return classes


def _totals(rows: Rows) -> NDArray[np.int64]:
    totals: NDArray[np.int64] = rows["length"].astype(np.int64) + rows["max_tokens"]
    return totals


@dataclass(slots=True)
class _Pool:
    """Rows of one class and sampling group: a sorted run that is used up from its end, and what came since.

    A row is sorted once, when the run before it is used up, so rows that trickle in cost no sort a take.
    """

    #: ascending by total, then prompt; rows from `end` on are gone
    run: Rows = field(default_factory=lambda: np.empty(0, _ROW))
    end: int = 0
    #: packed rows, in any order
    tail: bytearray = field(default_factory=bytearray)

    def __len__(self) -> int:
        return self.end + len(self.tail) // _ROW.itemsize

    def fitting(self, longest: int) -> int:
        """How many rows at the start of the run have a total of at most `longest`; 0 only when no row has."""
        count = self._fitting(longest)
        if not count and self.tail:
            rows = np.concatenate([self.run[: self.end], np.frombuffer(bytes(self.tail), _ROW)])
            self.tail = bytearray()
            self.run = rows[np.argsort((_totals(rows) << 32) | rows["length"], kind="stable")]
            self.end = len(self.run)
            count = self._fitting(longest)
        return count

    def _fitting(self, longest: int) -> int:
        if not self.end or self._total(self.end - 1) <= longest:
            return self.end
        return bisect_right(range(self.end), longest, key=self._total)

    def _total(self, index: int) -> int:
        row = self.run[index]
        return int(row["length"]) + int(row["max_tokens"])

    def take(self, rows: int, tokens: int, longest: int, *, force: bool) -> Rows:
        """Cuts the longest fitting rows, at most `rows` with together at most `tokens`; `force`: one at least."""
        fitting = self.fitting(longest) if rows > 0 else 0
        first = max(fitting - rows, 0)
        spent = np.cumsum(_totals(self.run[first:fitting])[::-1])
        count = int(np.searchsorted(spent, tokens, side="right"))
        if force and not count and fitting:
            count = 1
        return self._cut(fitting - count, fitting)

    def _cut(self, start: int, stop: int) -> Rows:
        taken: Rows = self.run[start:stop].copy()
        if stop < self.end:
            self.run[start : self.end - len(taken)] = self.run[stop : self.end].copy()
        self.end -= len(taken)
        if self.end < len(self.run) // 2:
            self.run = self.run[: self.end].copy()
        return taken


class Backlog:
    """The open rows that are in no shard."""

    def __init__(self) -> None:
        self._pools: dict[Class, dict[int, _Pool]] = {}
        #: classes as they are taken, some of them empty; None when one is new
        self._order: list[Class] | None = None
        self._cost: Cost | None = None
        self._known = 0
        #: rows given back, by sampling group
        self._back: dict[int, list[OpenRow]] = {}
        self._rows = 0
        #: prompt tokens of all rows
        self.input_tokens = 0
        #: new tokens that all rows may make
        self.max_tokens = 0
        #: octave of prompt length -> (rows, new tokens they may make)
        self.octaves: dict[int, tuple[int, int]] = {}

    def __len__(self) -> int:
        return self._rows

    @property
    def tokens(self) -> int:
        """Prompt and new tokens of all rows, at most."""
        return self.input_tokens + self.max_tokens

    @property
    def back(self) -> int:
        """Rows that were given back."""
        return sum(map(len, self._back.values()))

    @property
    def shortest(self) -> int:
        """Prompt and new tokens that no row has fewer of, within a class."""
        given = [_total(row) for rows in self._back.values() for row in rows]
        classes = [int(2 ** (min(self._pools)[0] / CLASSES))] if self._pools else []
        return min([*given, *classes], default=_NO_LIMIT)

    def add(self, rows: Iterable[OpenRow]) -> None:
        """Puts rows in."""
        columns = np.array([_FIELDS(row) for row in rows], np.int64).reshape(-1, 4)
        if not len(columns):
            return
        lengths, groups = columns[:, 1], columns[:, 3]
        classes = np.stack([_classes(lengths + columns[:, 2]), _classes(lengths), groups], axis=1)
        order = np.lexsort(classes.T[::-1])
        packed = np.empty(len(columns), _ROW)
        packed["id"], packed["length"], packed["max_tokens"] = columns[order, :3].T
        classes = classes[order]
        borders = np.flatnonzero(np.any(np.diff(classes, axis=0), axis=1)) + 1
        for start, stop in zip([0, *borders.tolist()], [*borders.tolist(), len(columns)], strict=True):
            total_class, prompt_class, group = classes[start].tolist()
            self._order = self._order if (total_class, prompt_class) in self._pools else None
            pools = self._pools.setdefault((total_class, prompt_class), {})
            pools.setdefault(group, _Pool()).tail += packed[start:stop].tobytes()
            of_class = packed[start:stop]
            prompts, most = int(of_class["length"].sum(dtype=np.int64)), int(of_class["max_tokens"].sum(dtype=np.int64))
            self._count(stop - start, prompts, most, prompt_class // CLASSES)

    def put_back(self, rows: Iterable[OpenRow]) -> None:
        """Puts rows in that go out ahead of all others."""
        for row in rows:
            self._back.setdefault(row.sampling, []).append(row)
            self._count(1, row.length, row.max_tokens, _octave(row))

    def take(self, *, rows: int, tokens: int, longest: int | None = None, back: bool = False) -> list[OpenRow]:
        """Cuts at most `rows` rows of one sampling group, of together at most `tokens` prompt and new tokens (or a
        single row), none over `longest`; those given back first, as they came (with `back` no others), then longest
        first. Empty when none fits."""
        limit = _NO_LIMIT if longest is None else longest
        taken = self._take_back(rows, tokens, limit)
        return taken or ([] if back else self._take_longest(rows, tokens, limit))

    def order_by(self, cost: Cost, known: int) -> None:
        """From now on what costs most is taken first; `known` is the number of answers that `cost` rests on, and when
        it has hardly grown the order stays."""
        if known > self._known * KNOWN_MORE:
            self._cost, self._known, self._order = cost, known, None

    def fits(self, longest: int) -> bool:
        """Whether any row has at most `longest` prompt and new tokens."""
        if any(_total(row) <= longest for given in self._back.values() for row in given):
            return True
        return any(self._fitting_pools(longest))

    def _take_back(self, rows: int, tokens: int, longest: int) -> list[OpenRow]:
        for group, given in self._back.items():
            fitting = [row for row in given if _total(row) <= longest]
            if not fitting:
                continue
            taken: list[OpenRow] = []
            for row in fitting[: max(rows, 1)]:
                tokens -= _total(row)
                if taken and tokens < 0:
                    break
                taken.append(row)
            gone = {row.id for row in taken}
            self._keep_back(group, [row for row in given if row.id not in gone])
            self._uncount(taken)
            return taken
        return []

    def _take_longest(self, rows: int, tokens: int, longest: int) -> list[OpenRow]:
        taken: list[OpenRow] = []
        first = next(self._fitting_pools(longest), None)
        if first is None:
            return []
        for name, group, pool in self._fitting_pools(longest, first[1]):
            while len(cut := pool.take(rows - len(taken), tokens, longest, force=not taken)):
                taken += _opened(cut, group)
                tokens -= int(_totals(cut).sum())
            spent = pool.fitting(longest) > 0
            self._drop_empty(name, group)
            if spent:
                break
        self._uncount(taken)
        return taken

    def _fitting_pools(self, longest: int, only: int | None = None) -> Iterator[tuple[Class, int, _Pool]]:
        """Pools that have a row of at most `longest`, longest class first; of one group when it is named."""
        limit = int(_classes(np.array([longest]))[0])
        if self._order is None:
            self._order = sorted(self._pools, key=self._rank, reverse=True)
        for name in self._order:
            if name[0] > limit or name not in self._pools:
                continue
            pools = self._pools[name]
            for group in list(pools) if only is None else [only]:
                if group in pools and pools[group].fitting(longest):
                    yield name, group, pools[group]

    def _rank(self, name: Class) -> tuple[float, Class]:
        total, prompt = (2 ** (part / CLASSES) for part in name)
        return (self._cost(int(prompt), max(int(total - prompt), 1)) if self._cost else 0.0), name

    def _drop_empty(self, name: Class, group: int) -> None:
        if not len(self._pools[name][group]):
            del self._pools[name][group]
            if not self._pools[name]:
                del self._pools[name]

    def _keep_back(self, group: int, rows: list[OpenRow]) -> None:
        if rows:
            self._back[group] = rows
        else:
            del self._back[group]

    def _count(self, rows: int, input_tokens: int, max_tokens: int, octave: int) -> None:
        self._rows += rows
        self.input_tokens += input_tokens
        self.max_tokens += max_tokens
        had_rows, had_tokens = self.octaves.get(octave, (0, 0))
        if had_rows + rows:
            self.octaves[octave] = (had_rows + rows, had_tokens + max_tokens)
        else:
            self.octaves.pop(octave, None)

    def _uncount(self, rows: list[OpenRow]) -> None:
        for octave, group in groupby(rows, key=_octave):
            gone = list(group)
            self._count(-len(gone), -sum(row.length for row in gone), -sum(row.max_tokens for row in gone), octave)


def _octave(row: OpenRow) -> int:
    return max(row.length, 1).bit_length() - 1


def _total(row: OpenRow) -> int:
    return row.length + row.max_tokens


def _opened(rows: Rows, group: int) -> list[OpenRow]:
    return [
        OpenRow(id=number, length=length, max_tokens=max_tokens, sampling=group)
        for number, length, max_tokens in rows[::-1].tolist()
    ]
