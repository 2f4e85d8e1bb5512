"""Which rows are with which worker: shards in flight. Pure; one instance, owned by the controller."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from coordinator.records import OpenRow


@dataclass(slots=True)
class Flight:
    """A shard on its way: dispatched and not yet accounted for."""

    #: shard id
    id: str
    worker: str
    #: rows without a result yet
    rows: dict[int, OpenRow] = field(default_factory=dict)
    #: a trial of suspects
    exclusive: bool = False
    #: seconds (controller's clock) since which neither the queue nor a beat has shown it; None while one does
    missing_since: float | None = None


class Assignments:
    """Shards in flight by worker, rows in flight by shard, and who has ever held an open row."""

    def __init__(self) -> None:
        #: shard id -> flight; a flight without rows is removed at once
        self.flights: dict[str, Flight] = {}
        #: row in flight -> its shard
        self._shard_of: dict[int, str] = {}
        #: open row that was ever sent -> workers that may answer it
        self._holders: dict[int, set[str]] = {}

    def send(self, flight: Flight) -> None:
        """Notes a shard as dispatched; none of its rows may be in another live shard."""
        twice = [row for row in flight.rows if row in self._shard_of]
        assert not twice, f"rows {twice[:5]} are already in a live shard"
        self.flights[flight.id] = flight
        for row in flight.rows:
            self._shard_of[row] = flight.id
            self._holders.setdefault(row, set()).add(flight.worker)

    def may_answer(self, worker: str, row: int) -> bool:
        """True when `row` was sent to `worker` at some time and is not recorded yet."""
        return worker in self._holders.get(row, ())

    def recorded(self, row: int) -> None:
        """The ledger has the row: nobody owes it any more."""
        self.release([row])
        self._holders.pop(row, None)

    def release(self, rows: Iterable[int]) -> list[OpenRow]:
        """Takes rows out of their shards, because they come back without a result; those that were in flight."""
        released = []
        for row in rows:
            shard = self._shard_of.pop(row, None)
            if shard is None:
                continue
            flight = self.flights[shard]
            released.append(flight.rows.pop(row))
            if not flight.rows:
                del self.flights[shard]
        return released

    def release_shard(self, shard: str) -> list[OpenRow]:
        """Takes a whole shard back."""
        flight = self.flights.get(shard)
        return self.release(list(flight.rows)) if flight else []

    def release_worker(self, worker: str) -> list[OpenRow]:
        """Takes back everything a lost worker had."""
        return [row for flight in self.of(worker) for row in self.release(list(flight.rows))]

    def of(self, worker: str) -> list[Flight]:
        """The worker's shards in flight."""
        return [flight for flight in self.flights.values() if flight.worker == worker]

    def shard_of(self, row: int) -> Flight | None:
        """The shard the row is in."""
        shard = self._shard_of.get(row)
        return self.flights[shard] if shard is not None else None

    def __len__(self) -> int:
        return len(self._shard_of)

    def validate(self) -> None:
        """Raises AssertionError when a row is in two shards or an index disagrees (I4)."""
        seen: dict[int, str] = {}
        for flight in self.flights.values():
            assert flight.rows, f"empty shard {flight.id} kept"
            for row in flight.rows:
                assert row not in seen, f"row {row} is in {seen[row]} and in {flight.id}"
                seen[row] = flight.id
                assert flight.worker in self._holders.get(row, ()), f"row {row} has no holder {flight.worker}"
        assert seen == self._shard_of, "the row index disagrees with the shards"
