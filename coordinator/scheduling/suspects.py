"""Finding the row that kills engines. Pure: crashes in, trials and verdicts out.

After a crash every row of the batch is a suspect. The one whose prompt was started last runs alone first; the
others run in halves, with nothing else in the batch, and each half that crashes is halved again. A row that
crashes an engine alone twice is guilty. Where it crashed is remembered, so that it can be tried elsewhere: the worker
may be to blame.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass

#: Crashes alone that quarantine a row.
GUILTY_AT = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """Rows to run with nothing else in the batch."""

    rows: tuple[int, ...]


@dataclass(slots=True)
class Case:
    """One crash and what followed from it."""

    #: rows still under suspicion: in a waiting trial or in one that is running
    open: set[int]
    #: whose engine it was
    worker: str = ""
    #: True once a row of it was found guilty
    explained: bool = False


class Suspects:
    """Trials still to run; the controller sends each as an exclusive shard."""

    def __init__(self) -> None:
        self._trials: deque[Trial] = deque()
        #: row under suspicion -> its case
        self._case_of: dict[int, Case] = {}
        #: row under suspicion -> crashes it was in, by worker
        self._crashes: dict[int, Counter[str]] = {}

    def crashed(self, rows: Sequence[int], latest: Sequence[int], worker: str = "") -> None:
        """Takes the rows of a worker's crashed batch (`latest`: those whose prompts were started last) as suspects."""
        assert rows, "a crash with nothing in the batch has no suspects"
        fresh = {row for row in rows if row not in self._case_of}
        if fresh:
            case = Case(open=fresh, worker=worker)
            self._case_of.update(dict.fromkeys(fresh, case))
        for row in rows:
            self._crashes.setdefault(row, Counter())[worker] += 1
        if len(rows) == 1:
            self._trials.append(Trial(rows=tuple(rows)))
            return
        first = [row for row in latest if row in set(rows)]
        first = first[-1:] if len(first) < len(rows) else []
        if first:
            self._trials.append(Trial(rows=tuple(first)))
        rest = [row for row in rows if row not in first]
        middle = (len(rest) + 1) // 2
        for half in (rest[:middle], rest[middle:]):
            if half:
                self._trials.append(Trial(rows=tuple(half)))

    def take(self) -> Trial | None:
        """The next trial to run, None when all are running or done."""
        return self._trials.popleft() if self._trials else None

    def put_back(self, rows: Sequence[int]) -> None:
        """A trial came back without a verdict (its worker left): it waits again."""
        if rows:
            self._trials.appendleft(Trial(rows=tuple(rows)))

    def crashes_on(self, rows: Sequence[int], worker: str) -> int:
        """In how many crashes of the worker these suspects were, all together."""
        return sum(self._crashes[row][worker] for row in rows if row in self._crashes)

    def cases_of(self, worker: str) -> int:
        """Crashes of the worker that are neither explained nor cleared up yet."""
        return len({id(case) for case in self._case_of.values() if case.worker == worker and not case.explained})

    def guilty(self, row: int) -> None:
        """The row's case is explained by it."""
        if row in self._case_of:
            self._case_of[row].explained = True

    def cleared(self, row: int) -> Case | None:
        """The row ended, in whatever way; its case, when that has no suspect left."""
        self._crashes.pop(row, None)
        case = self._case_of.pop(row, None)
        if case is None:
            return None
        case.open.discard(row)
        return None if case.open else case

    def __contains__(self, row: int) -> bool:
        return row in self._case_of

    def __len__(self) -> int:
        return len(self._case_of)
