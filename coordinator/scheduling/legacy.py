"""What an earlier coordinator had sent, and whose fate is unknown until the workers tell what they have. Pure.

A broker dies with its coordinator and what was queued there is gone, but a worker keeps the shards that it had taken,
and shows them in its beat. So a row that was sent waits here until each worker that it went to was heard or is lost.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator

from coordinator.records import OpenRow

#: Rows by the shard that a worker has them in.
Held = dict[str, list[OpenRow]]


class Legacy:
    """Open rows that were sent. Each leaves once: with the worker that has it, or free for anybody."""

    def __init__(self, sent: Iterable[tuple[int, str, str]] = ()) -> None:
        """`sent` has (row, worker, shard); a row that went to several workers comes again."""
        #: row that no job has claimed -> worker it was sent to -> the shard that it went in
        self._sent: dict[int, dict[str, str]] = {}
        #: the same of rows that a job wants
        self._waiting: dict[int, tuple[OpenRow, dict[str, str]]] = {}
        for row, worker, shard in sent:
            self._sent.setdefault(row, {})[worker] = shard

    def __len__(self) -> int:
        """Rows that wait for a worker to tell."""
        return len(self._waiting)

    def claim(self, job: int, rows: Iterable[OpenRow]) -> list[OpenRow]:
        """Rows that a job wants: those that were sent wait here from now on, the others may go to anybody."""
        if not self._sent and not self._waiting:
            return list(rows)
        others = []
        for row in rows:
            if row.id in self._sent:
                self._waiting[row.id] = row.of_job(job), self._sent.pop(row.id)
            elif row.id not in self._waiting:
                others.append(row)
        return others

    def workers(self) -> set[str]:
        """Those that have not told of rows that wait."""
        return {worker for _, places in self._waiting.values() for worker in places}

    def told(self, worker: str, rows: Iterable[int]) -> Held:
        """A worker reports on these rows: it had them."""
        held: Held = {}
        for id in rows:
            self._sent.pop(id, None)
            if id in self._waiting and worker in self._waiting[id][1]:
                row, places = self._waiting.pop(id)
                held.setdefault(places[worker], []).append(row)
        return held

    def heard(self, worker: str, shards: Container[str]) -> tuple[Held, list[OpenRow]]:
        """A worker has these shards and nothing else; with none also one that is lost. What it has of the rows that
        wait, and those that nobody can have any more."""
        held: Held = {}
        free = []
        for row, places in list(self._of(worker)):
            shard = places.pop(worker)
            if shard in shards:
                held.setdefault(shard, []).append(row)
            elif not places:
                free.append(row)
            else:
                continue
            del self._waiting[row.id]
        return held, free

    def drop(self, job: int) -> list[OpenRow]:
        """A job is given up: its rows that wait."""
        rows = [row for row, _ in self._waiting.values() if row.job == job]
        for row in rows:
            del self._waiting[row.id]
        return rows

    def _of(self, worker: str) -> Iterator[tuple[OpenRow, dict[str, str]]]:
        return (found for found in self._waiting.values() if worker in found[1])
