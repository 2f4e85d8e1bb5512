"""Requests of a job as intake adds them, their parts, and their rows. Used inside a transaction."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import astuple

from coordinator.ledger.rows import RowBook, Upserted
from coordinator.ledger.schema import first_request
from coordinator.ledger.settle import settle, touch_requests
from coordinator.ledger.store import Store
from coordinator.records import NewRequest, NewRow, OpenRow, Place, Source
from fleet.job import RequestState

_INSERT = """
INSERT INTO request (id, job, custom_id, state, shape, input, line, url, extra, error)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (job, custom_id) DO NOTHING
"""
_REPEATED = "UPDATE request SET repeated_id = ? WHERE id = ?"
_INSERT_PART = "INSERT INTO part (request, level, ordinal, row, place) VALUES (?, ?, ?, ?, ?)"
_ADD_COUNTS = "UPDATE job SET requests = requests + ?, error = error + ? WHERE id = ?"

#: Input files remembered by path.
_INPUTS = 1_024


def already_used(custom_id: str, place: str) -> str:
    """The error of a request whose custom_id an earlier one has, at `place`."""
    return f"custom_id {custom_id!r} was already used at {place}"


class RequestBook:
    """Adds requests to jobs."""

    def __init__(self, store: Store, rows: RowBook) -> None:
        self._store = store
        self._rows = rows
        self._inputs: dict[str, int] = {}
        #: by job: a byte for each request, 1 where intake made its custom_id; whole, since one process takes a job's
        #: input in, from its first line on
        self._made: dict[int, bytearray] = {}

    def forget(self) -> None:
        """After a rollback: ids given since may be gone."""
        self._inputs.clear()

    def add(self, job: int, requests: Sequence[NewRequest]) -> list[OpenRow]:
        """Their open rows, each once; requests that need no row computed have ended when this returns."""
        number = self._store.number("SELECT requests FROM job WHERE id = ?", (job,))
        numbered = dict(enumerate(requests, first_request(job) + number))
        made = self._made.setdefault(job, bytearray())
        made[number:] = bytes(max(0, number - len(made))) + bytes(request.made_id for request in requests)
        errors = sum(request.error is not None for request in requests)
        added = self._store.run_many(_INSERT, [self._values(i, job, r) for i, r in numbered.items()])
        if added < len(numbered):
            repeated = self._record_repeated(job, numbered)
            errors += sum(numbered.pop(i).error is None for i in repeated)
        self._store.run(_ADD_COUNTS, (len(requests), errors, job))
        return self._add_parts(job, numbered).open

    def add_level(self, job: int, request: int, level: int, rows: Sequence[NewRow]) -> list[OpenRow]:
        """Gives a REDUCE request its next level; its open rows."""
        upserted = self._rows.upsert(job, rows)
        parts = [(request, level, ordinal, row, None) for ordinal, row in enumerate(upserted.ids)]
        self._store.run_many(_INSERT_PART, parts)
        self._store.run("UPDATE request SET level = ? WHERE id = ?", (level, request))
        touch_requests(self._store, [request])
        settle(self._store)
        return upserted.open

    def _add_parts(self, job: int, numbered: dict[int, NewRequest]) -> Upserted:
        rows = [row for request in numbered.values() for row in request.rows]
        upserted = self._rows.upsert(job, rows)
        ids = iter(upserted.ids)
        parts = [
            (i, 0, k, next(ids), _placed(row.place))
            for i, request in numbered.items()
            for k, row in enumerate(request.rows)
        ]
        self._store.run_many(_INSERT_PART, parts)
        if upserted.ended:
            touch_requests(self._store, sorted({part[0] for part in parts if part[3] in upserted.ended}))
            settle(self._store)
        return upserted

    def _values(self, number: int, job: int, request: NewRequest) -> tuple[object, ...]:
        state = RequestState.OPEN if request.error is None else RequestState.ERROR
        source = request.source
        return (
            number,
            job,
            request.custom_id,
            int(state),
            int(request.shape),
            self._input(source.file),
            source.line,
            request.url,
            request.extra,
            request.error,
        )

    def _input(self, path: str) -> int:
        found = self._inputs.get(path)
        if found is None:
            text = path.encode("utf-8", "surrogateescape").decode("utf-8", "replace")  # a file name can be any bytes
            self._store.run("INSERT INTO input (path) VALUES (?) ON CONFLICT (path) DO NOTHING", (text,))
            found = self._store.number("SELECT id FROM input WHERE path = ?", (text,))
            if len(self._inputs) >= _INPUTS:
                self._inputs.clear()
            self._inputs[path] = found
        return found

    def _record_repeated(self, job: int, numbered: dict[int, NewRequest]) -> list[int]:
        """Records the requests that were not inserted, since their custom_id is taken; those that are errors now.

        An id that intake made gives way: it gets a number behind, also in a request that is recorded already.
        """
        first, last = next(iter(numbered)), next(reversed(numbered))
        there = {i for (i,) in self._store.rows("SELECT id FROM request WHERE id BETWEEN ? AND ?", (first, last))}
        errors = []
        for i in [i for i in numbered if i not in there]:
            request = numbered[i]
            values = list(self._values(i, job, request))
            holder = self._store.number("SELECT id FROM request WHERE job = ? AND custom_id = ?", (job, values[2]))
            if request.made_id:
                values[2] = self._free_id(job, str(values[2]))
            elif self._made[job][holder - first_request(job)]:
                free = self._free_id(job, str(values[2]))
                self._store.run("UPDATE request SET custom_id = ? WHERE id = ?", (free, holder))
            else:
                errors.append(i)
                values[2:4] = None, int(RequestState.ERROR)
                values[-1] = already_used(str(request.custom_id), self._place(holder))
            self._store.run(_INSERT, values)
            if values[2] is None:
                self._store.run(_REPEATED, (request.custom_id, i))
        return errors

    def _place(self, request: int) -> str:
        query = "SELECT path, line FROM request JOIN input ON input.id = input WHERE request.id = ?"
        ((path, line),) = self._store.rows(query, (request,))
        return str(Source(file=path, line=line))

    def _free_id(self, job: int, taken: str) -> str:
        """`taken` with the first number behind it that makes an id no request of the job has."""
        number = 2
        while self._store.row("SELECT 1 FROM request WHERE job = ? AND custom_id = ?", (job, f"{taken}-{number}")):
            number += 1
        return f"{taken}-{number}"


def _placed(place: Place | None) -> str | None:
    return None if place is None else json.dumps(astuple(place), separators=(",", ":"))
