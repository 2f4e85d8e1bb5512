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
    #: the ledger's job id
    job: int = 0
    #: rows without a result yet
    rows: dict[int, OpenRow] = field(default_factory=dict)
    #: a trial of suspects
    exclusive: bool = False
    #: its rows are in another worker's shard too; the first result wins
    copy: bool = False
    #: its agent had it already when it was to be taken back
    taken: bool = False
    #: seconds (controller's clock) since which neither the queue nor a beat has shown it; None while one does
    missing_since: float | None = None
    #: of a mean row of it: prompt tokens to compute, new tokens expected
    row_input_tokens: float = 0.0
    row_output_tokens: float = 0.0

    @property
    def input_tokens(self) -> float:
        """Prompt tokens to compute of the rows without a result, about."""
        return len(self.rows) * self.row_input_tokens

    @property
    def output_tokens(self) -> float:
        """New tokens expected of the rows without a result."""
        return len(self.rows) * self.row_output_tokens


@dataclass(slots=True)
class Burden:
    """What a worker has in all its shards: rows, prompt tokens to compute, new tokens expected."""

    rows: int = 0
    input_tokens: float = 0.0
    output_tokens: float = 0.0

    def add(self, rows: int, flight: Flight) -> None:
        """Counts rows of a shard, or takes them off when negative."""
        self.rows += rows
        self.input_tokens += rows * flight.row_input_tokens
        self.output_tokens += rows * flight.row_output_tokens


_NOTHING = Burden()


class Assignments:
    """Shards in flight by worker, rows in flight by shard, and who has ever held an open row."""

    def __init__(self) -> None:
        #: shard id -> flight; a flight without rows is removed at once
        self.flights: dict[str, Flight] = {}
        #: row in flight -> its shard
        self._shard_of: dict[int, str] = {}
        #: row in flight -> shards that are copies of it
        self._copies: dict[int, list[str]] = {}
        #: open row that was ever sent -> workers that may answer it
        self._holders: dict[int, set[str]] = {}
        #: worker -> its flights, oldest first
        self._of: dict[str, dict[str, Flight]] = {}
        #: worker -> the sum of its flights
        self._burdens: dict[str, Burden] = {}

    def send(self, flight: Flight) -> None:
        """Notes a shard as dispatched; its rows may be in no other live shard, those of a copy must be."""
        if flight.copy:
            assert all(row in self._shard_of for row in flight.rows), "a copy of rows that are in no shard"
        else:
            twice = [row for row in flight.rows if row in self._shard_of]
            assert not twice, f"rows {twice[:5]} are already in a live shard"
        self.flights[flight.id] = flight
        self._of.setdefault(flight.worker, {})[flight.id] = flight
        self._burdens.setdefault(flight.worker, Burden()).add(len(flight.rows), flight)
        for row in flight.rows:
            if flight.copy:
                self._copies.setdefault(row, []).append(flight.id)
            else:
                self._shard_of[row] = flight.id
            self._holders.setdefault(row, set()).add(flight.worker)

    def adopt(self, flight: Flight) -> None:
        """Notes a shard that an earlier coordinator sent; more of its rows may follow under the same id."""
        known = self.flights.get(flight.id)
        if known is None:
            self.send(flight)
            return
        assert not flight.rows.keys() & self._shard_of.keys(), f"rows of {flight.id} are already in a live shard"
        known.rows.update(flight.rows)
        self._burdens[known.worker].add(len(flight.rows), known)
        for row in flight.rows:
            self._shard_of[row] = known.id
            self._holders.setdefault(row, set()).add(known.worker)

    def remember(self, row: int, worker: str) -> None:
        """Takes over from an earlier coordinator that a worker may answer an open row."""
        self._holders.setdefault(row, set()).add(worker)

    def may_answer(self, worker: str, row: int) -> bool:
        """True when `row` was sent to `worker` at some time and is not recorded yet."""
        return worker in self._holders.get(row, ())

    def recorded(self, row: int) -> list[Flight]:
        """The ledger has the row: nobody owes it any more. The shards it was in."""
        flights = [self.flights[shard] for shard in self.shards_of(row)]
        self.release([row])
        self._holders.pop(row, None)
        return flights

    def release(self, rows: Iterable[int], worker: str | None = None) -> list[OpenRow]:
        """Takes rows out of the shards of `worker` (of all, without one), because they come back without a result;
        those that are now in no shard and were in one."""
        released = []
        for row in rows:
            taken = None
            for shard in self.shards_of(row):
                if worker is None or self.flights[shard].worker == worker:
                    taken = self._take_out(row, shard)
            if taken is not None and row not in self._shard_of:
                released.append(taken)
        return released

    def release_shard(self, shard: str) -> list[OpenRow]:
        """Takes a whole shard back; its rows that are in no other."""
        flight = self.flights.get(shard)
        if flight is None:
            return []
        taken = [self._take_out(row, shard) for row in list(flight.rows)]
        return [row for row in taken if row.id not in self._shard_of]

    def release_worker(self, worker: str) -> list[OpenRow]:
        """Takes back everything a lost worker had; the rows that nobody else has."""
        return [row for flight in self.of(worker) for row in self.release_shard(flight.id)]

    def of(self, worker: str) -> list[Flight]:
        """The worker's shards in flight, oldest first."""
        return list(self._of.get(worker, {}).values())

    def burden(self, worker: str) -> Burden:
        """What the worker has; to be read and not kept."""
        return self._burdens.get(worker, _NOTHING)

    def shard_of(self, row: int) -> Flight | None:
        """The shard the row is in, the first when there are copies."""
        shard = self._shard_of.get(row)
        return self.flights[shard] if shard is not None else None

    def shards_of(self, row: int) -> list[str]:
        """The shard the row is in, and copies of it."""
        shard = self._shard_of.get(row)
        if shard is None:
            return []
        return [shard, *self._copies[row]] if row in self._copies else [shard]

    def is_copied(self, row: int) -> bool:
        """Whether more than one worker has the row."""
        return row in self._copies

    def has(self, worker: str, row: int) -> bool:
        """Whether the row is in a shard of this worker."""
        return any(self.flights[shard].worker == worker for shard in self.shards_of(row))

    def _take_out(self, row: int, shard: str) -> OpenRow:
        copies = self._copies.get(row, [])
        if shard in copies:
            copies.remove(shard)
        elif copies:
            # the oldest copy is the row's shard from now on
            self._shard_of[row] = copies.pop(0)
        else:
            del self._shard_of[row]
        if row in self._copies and not copies:
            del self._copies[row]
        flight = self.flights[shard]
        taken = flight.rows.pop(row)
        self._burdens[flight.worker].add(-1, flight)
        if not flight.rows:
            del self.flights[shard]
            del self._of[flight.worker][shard]
            if not self._of[flight.worker]:
                del self._of[flight.worker], self._burdens[flight.worker]
        return taken

    def __len__(self) -> int:
        return len(self._shard_of)

    def validate(self) -> None:
        """Raises AssertionError when a row is in two shards that are no copies, or an index disagrees (I4)."""
        seen: dict[int, list[str]] = {}
        for flight in self.flights.values():
            assert flight.rows, f"empty shard {flight.id} kept"
            assert self._of[flight.worker][flight.id] is flight, f"{flight.worker} does not know {flight.id}"
            for row in flight.rows:
                seen.setdefault(row, []).append(flight.id)
                assert flight.worker in self._holders.get(row, ()), f"row {row} has no holder {flight.worker}"
        for worker, burden in self._burdens.items():
            assert burden.rows == sum(len(flight.rows) for flight in self.of(worker)), f"the rows of {worker}"
        assert sum(map(len, self._of.values())) == len(self.flights), "a worker knows a shard that is gone"
        assert {row: set(self.shards_of(row)) for row in self._shard_of} == {row: set(ids) for row, ids in seen.items()}
        for row, shards in seen.items():
            plain = [shard for shard in shards if not self.flights[shard].copy]
            assert len(plain) <= 1, f"row {row} is in {plain}, none of them a copy"
            workers = [self.flights[shard].worker for shard in shards]
            assert len(set(workers)) == len(workers), f"row {row} is twice with a worker"
