"""Rows by key: a new computation gets an id, one already known keeps its own. Used inside a transaction."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass

from coordinator.ledger.schema import first_request
from coordinator.ledger.store import Store
from coordinator.records import NewRow, OpenRow, StoredRow
from fleet.errors import StorageError
from fleet.job import Embedding, JobState, RowState, Sampling, canonical

#: Sampling groups remembered; more only cost a query each.
_SAMPLINGS = 4_096
#: Keys looked up by one statement.
_LOOK_UP = 500

_OPEN_ROWS = """
SELECT r.id, length(r.tokens) / 4, r.max_tokens, r.sampling, p.request, p.level, p.ordinal
FROM part p
CROSS JOIN request q ON q.id = p.request AND q.state = 0
CROSS JOIN row r ON r.id = p.row AND r.state = 0
WHERE (p.request, p.level, p.ordinal) > (?, ?, ?) AND p.request < ?
ORDER BY p.request, p.level, p.ordinal LIMIT ?
"""
_UNNEEDED = """
SELECT value FROM json_each(?) WHERE NOT EXISTS (
  SELECT 1 FROM part p CROSS JOIN request q ON q.id = p.request AND q.state = 0
  CROSS JOIN job j ON j.id = p.request >> 32 AND j.state = ? AND j.id NOT IN (SELECT job FROM cancellation)
  WHERE p.row = value
)
"""
_STORED_ROWS = """
SELECT id, key, tokens, max_tokens, sampling FROM row
WHERE state = 0 AND id IN (SELECT value FROM json_each(?))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Upserted:
    """What became of a list of new rows."""

    #: row id of each, in order; equal keys have equal ids
    ids: list[int]
    #: those of them that are open, each once
    open: list[OpenRow]
    #: those of them that ended before
    ended: set[int]


class HandedOut:
    """Which rows a run of a job has been given, one byte a row id."""

    def __init__(self) -> None:
        self._marks = bytearray()

    def fresh(self, rows: Iterable[OpenRow]) -> list[OpenRow]:
        """Those not given out yet."""
        marks, size = self._marks, len(self._marks)
        return [row for row in rows if row.id >= size or not marks[row.id]]

    def mark(self, rows: Sequence[OpenRow]) -> None:
        """From here on these have been given out."""
        if not rows:
            return
        need = max(row.id for row in rows) + 1 - len(self._marks)
        if need > 0:
            self._marks.extend(bytes(need))
        for row in rows:
            self._marks[row.id] = 1


class Samplings:
    """Sampling groups by id and back."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._ids: dict[Sampling, int] = {}
        self._last: tuple[Sampling | None, int] = (None, 0)

    def forget(self) -> None:
        """After a rollback: ids given since may be gone."""
        self._ids.clear()
        self._last = (None, 0)

    def id(self, sampling: Sampling) -> int:
        """The group's id, recorded when it is new."""
        if self._last[0] is sampling:
            return self._last[1]
        found = self._ids.get(sampling)
        if found is None:
            text = canonical(asdict(sampling)).decode()
            self._store.run("INSERT INTO sampling (json) VALUES (?) ON CONFLICT (json) DO NOTHING", (text,))
            found = self._store.number("SELECT id FROM sampling WHERE json = ?", (text,))
            if len(self._ids) >= _SAMPLINGS:
                self._ids.clear()
            self._ids[sampling] = found
        self._last = (sampling, found)
        return found

    def get(self, number: int) -> Sampling:
        """The group with this id."""
        found = self._store.row("SELECT json FROM sampling WHERE id = ?", (number,))
        if found is None:
            raise StorageError(f"the ledger has no sampling group {number}: it was changed by something else")
        fields = json.loads(found[0])
        built = {
            "embedding": Embedding(**fields["embedding"]) if fields["embedding"] else None,
            "stop": tuple(fields["stop"]),
            "labels": tuple(fields["labels"]),
            "label_tokens": tuple(tuple(tokens) for tokens in fields["label_tokens"]),
        }
        return Sampling(**{**fields, **built})


class RowBook:
    """Gives rows their ids. Ids are given out here rather than by SQLite, so that most inserts need no reading back."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.samplings = Samplings(store)
        self._next = store.number("SELECT max(id) FROM row") + 1

    def upsert(self, job: int, rows: Sequence[NewRow]) -> Upserted:
        """Records the rows whose keys are new; known ones that failed are opened again, unless they failed for
        another request of this very job."""
        first = self._next
        by_key: dict[bytes, NewRow] = {row.key: row for row in rows}
        group = self.samplings.id
        added = self._store.run_many(
            "INSERT INTO row (id, key, max_tokens, sampling, tokens) VALUES (?, ?, ?, ?, ?) "
            "ON CONFLICT (key) DO NOTHING",
            [
                (number, row.key, row.max_tokens, group(row.sampling), row.tokens)
                for number, row in enumerate(by_key.values(), first)
            ],
        )
        ids = {key: number for number, key in enumerate(by_key, first)}
        states: dict[int, RowState] = {}
        if added:
            self._next = first + len(ids)
        if added < len(ids):
            states = self._find_known(ids, first)
            self._open_failed(job, states)
        opened = [
            OpenRow(id=ids[key], length=row.length, max_tokens=row.max_tokens, sampling=group(row.sampling))
            for key, row in by_key.items()
            if states.get(ids[key], RowState.OPEN) == RowState.OPEN
        ]
        opened.sort(key=lambda row: row.id)
        ended = {number for number, state in states.items() if state != RowState.OPEN}
        return Upserted(ids=[ids[row.key] for row in rows], open=opened, ended=ended)

    def _find_known(self, ids: dict[bytes, int], first: int) -> dict[int, RowState]:
        """Corrects the ids of rows that were there before and gives their states."""
        new = {number for (number,) in self._store.rows("SELECT id FROM row WHERE id >= ?", (first,))}
        keys = [key for key, number in ids.items() if number not in new]
        states: dict[int, RowState] = {}
        for start in range(0, len(keys), _LOOK_UP):
            some = keys[start : start + _LOOK_UP]
            marks = ",".join("?" * len(some))
            for number, key, state in self._store.rows(f"SELECT id, key, state FROM row WHERE key IN ({marks})", some):
                ids[key] = number
                states[number] = RowState(state)
        return states

    def _open_failed(self, job: int, states: dict[int, RowState]) -> None:
        failed = [number for number, state in states.items() if state > RowState.DONE]
        if not failed:
            return
        ours = self._store.rows(
            "SELECT DISTINCT row FROM part WHERE row IN (SELECT value FROM json_each(?)) "
            "AND request >= ? AND request < ?",
            (json.dumps(failed), first_request(job), first_request(job + 1)),
        )
        again = sorted(set(failed) - {number for (number,) in ours})
        self._store.run(
            "UPDATE row SET state = 0, crashes = 0, alone = 0, vanished = 0, error = NULL "
            "WHERE id IN (SELECT value FROM json_each(?))",
            (json.dumps(again),),
        )
        states.update((number, RowState.OPEN) for number in again)


def open_rows_of(store: Store, job: int, batch: int) -> Iterator[list[OpenRow]]:
    """The open rows of the job's open requests, `batch` parts at a time; a row comes again when requests share it."""
    place, end = (first_request(job), -1, -1), first_request(job + 1)
    while lines := store.rows(_OPEN_ROWS, (*place, end, batch)):
        place = lines[-1][4:]
        unique = {line[0]: line for line in lines}
        yield [OpenRow(id=v[0], length=v[1], max_tokens=v[2], sampling=v[3]) for v in unique.values()]


def stored_rows(store: Store, ids: Sequence[int]) -> list[StoredRow]:
    """Those of these rows that are open, with their tokens, in the order asked for."""
    found = {
        values[0]: StoredRow(id=values[0], key=values[1], tokens=values[2], max_tokens=values[3], sampling=values[4])
        for values in store.rows(_STORED_ROWS, (json.dumps(list(ids)),))
    }
    return [found[row] for row in ids if row in found]


def unneeded(store: Store, rows: Sequence[int]) -> list[int]:
    """Those of these rows that no running job has an open request of."""
    return [row for (row,) in store.rows(_UNNEEDED, (json.dumps(list(rows)), JobState.RUNNING.value))]
