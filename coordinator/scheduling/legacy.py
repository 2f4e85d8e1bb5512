"""What an earlier coordinator had sent, and whose fate is unknown until the workers tell what they have. Pure.

A broker dies with its coordinator and what was queued there is gone, but a worker keeps the shards that it had taken,
and shows them in its beat. So a row that was sent waits here until each worker that it went to was heard or is lost.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from itertools import chain

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
        """Rows of which some worker must still tell."""
        return len(self._waiting) + len(self._sent)

    def claim(self, job: int, rows: Iterable[OpenRow]) -> tuple[list[OpenRow], list[OpenRow]]:
        """Rows that a job wants: those that were sent wait here from now on. The others: such as may go to anybody,
        and such as wait for another job."""
        free: list[OpenRow] = []
        left: list[OpenRow] = []
        for row in rows:
            if row.id in self._sent:
                self._waiting[row.id] = row.of_job(job), self._sent.pop(row.id)
            else:
                (left if row.id in self._waiting else free).append(row)
        return free, left

    def workers(self) -> set[str]:
        """Those that rows were sent to, of which they have not told."""
        waiting = (places for _, places in self._waiting.values())
        return {worker for places in chain(waiting, self._sent.values()) for worker in places}

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
        gone = [id for id, places in self._sent.items() if worker in places and places[worker] not in shards]
        self.forget(worker, gone)
        return held, free

    def drop(self, job: int) -> list[int]:
        """A job is given up: its rows that wait, which nobody has claimed until another job does."""
        dropped = [row.id for row, _ in self._waiting.values() if row.job == job]
        self._sent.update((id, self._waiting.pop(id)[1]) for id in dropped)
        return dropped

    def unclaimed(self, worker: str, shards: Container[str]) -> list[int]:
        """Rows that no job has claimed, in these shards that a worker has."""
        return [id for id, places in self._sent.items() if places.get(worker) in shards]

    def forget(self, worker: str, rows: Iterable[int]) -> None:
        """A worker has none of these, which no job has claimed."""
        for id in rows:
            places = self._sent[id]
            del places[worker]
            if not places:
                del self._sent[id]

    def _of(self, worker: str) -> Iterator[tuple[OpenRow, dict[str, str]]]:
        return (found for found in self._waiting.values() if worker in found[1])
