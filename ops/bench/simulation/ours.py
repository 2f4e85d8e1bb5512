"""Our policy in the simulator: the production modules, fed as the controller feeds them."""

from __future__ import annotations

from collections.abc import Sequence

from coordinator.control.job_run import COPIES, COPIES_SHARE
from coordinator.records import OpenRow
from coordinator.scheduling.assignments import Assignments, Flight
from coordinator.scheduling.backlog import Backlog
from coordinator.scheduling.fleet_view import Copy, Cut, FleetView, Recall, Steal
from coordinator.scheduling.lengths import Lengths
from coordinator.scheduling.picture import Seen, pool_view, row_views, shard_views, weigh, worker_view
from coordinator.scheduling.scheduler import decide
from coordinator.scheduling.speeds import Speed
from fleet.messages import Figures
from ops.bench.simulation.machine import Machine
from ops.bench.simulation.profiles import Profile
from ops.bench.simulation.run import Simulation


class Ours:
    """Sees prompt lengths, beats and finished rows."""

    def __init__(self) -> None:
        self._backlog = Backlog()
        self._assignments = Assignments()
        self._lengths = Lengths()
        self._seen: dict[str, Seen] = {}
        self._speeds: dict[str, Speed] = {}
        self._limits: dict[str, tuple[int, int]] = {}
        self._shards = 0

    def begin(self, simulation: Simulation) -> None:
        self._simulation = simulation
        workload = simulation.workload
        self._prompts = workload.prompts.tolist()
        self._backlog.add(
            OpenRow(id=row, length=length, max_tokens=workload.max_tokens, sampling=0)
            for row, length in enumerate(self._prompts)
        )

    def joined(self, worker: str, profile: Profile) -> None:
        self._limits[worker] = (profile.cap, profile.longest_tokens)
        self._seen[worker] = Seen()
        self._speeds[worker] = Speed()

    def ended(self, worker: str, rows: Sequence[tuple[int, int]], now_s: float) -> None:
        del now_s
        losers: dict[str, list[int]] = {}
        for row, tokens in rows:
            self._lengths.ended(self._prompts[row], tokens)
            for flight in self._assignments.recorded(row):
                if flight.worker != worker:
                    losers.setdefault(flight.worker, []).append(row)
        for loser, lost in losers.items():
            self._simulation.cancel(loser, lost)

    def beat(self, worker: str, machine: Machine, figures: Figures, now_s: float) -> None:
        self._speeds[worker].report(figures, now_s, waits=bool(machine.waiting()))
        if self._seen[worker].cap and len(self._backlog) > len(self._assignments):
            return  # what a beat holds besides is not looked at before the end
        cap, longest = self._limits[worker]
        queued = {parcel.id for parcel in machine.queue}
        held = frozenset(flight.id for flight in self._assignments.of(worker) if flight.id not in queued)
        self._seen[worker] = Seen(cap=cap, longest_tokens=longest, shards=held, running=machine.running())

    def lost(self, worker: str) -> None:
        del self._seen[worker], self._speeds[worker]
        self._backlog.put_back(self._assignments.release_worker(worker))

    def turn(self, now_s: float) -> None:
        del now_s
        ahead: list[tuple[str, list[OpenRow]]] = []
        for decision in decide(self._view()):
            match decision:
                case Cut(worker=worker, ahead=True):
                    self._make_room(worker)
                    ahead.append((worker, self._take(decision)))
                case Cut(worker=worker):
                    self._send(worker, self._take(decision))
                case Steal(shard=shard, source=source, target=target):
                    if self._simulation.take_back(source, shard):
                        self._move(target, self._assignments.release_shard(shard))
                case Recall(rows=ids, source=source, target=target):
                    rows = self._assignments.release(ids, source)
                    self._simulation.cancel(source, ids)
                    self._move(target, rows)
                case Copy(row=row, target=target):
                    flight = self._assignments.shard_of(row)
                    if flight is not None:
                        self._simulation.outcome.copies += 1
                        self._send(target, [flight.rows[row]], copy=True)
        for worker, rows in reversed(ahead):  # which leaves the first in front
            self._send(worker, rows, ahead=True)

    def _take(self, cut: Cut) -> list[OpenRow]:
        self._backlog.order_by(self._lengths.cost, self._lengths.rows)
        return self._backlog.take(rows=cut.rows, tokens=cut.tokens, longest=cut.longest, back=cut.ahead)

    def _make_room(self, worker: str) -> None:
        """What waits with the agent goes back to the pool, as the sender does it."""
        waiting = self._simulation.machines[worker].waiting()
        plain = [row for row in waiting if not self._assignments.is_copied(row)]
        self._simulation.cancel(worker, plain)
        self._backlog.add(self._assignments.release(plain, worker))

    def _move(self, worker: str, rows: Sequence[OpenRow]) -> None:
        self._simulation.outcome.moved += len(rows)
        self._send(worker, rows)

    def _send(self, worker: str, rows: Sequence[OpenRow], *, copy: bool = False, ahead: bool = False) -> None:
        if not rows:
            return
        self._shards += 1
        flight = Flight(id=f"{worker}-{self._shards}", worker=worker, rows={row.id: row for row in rows}, copy=copy)
        weigh(flight, self._lengths)
        self._assignments.send(flight)
        self._simulation.send(worker, flight.id, list(flight.rows), ahead=ahead)

    def _view(self) -> FleetView:
        assignments = self._assignments
        workers = [worker_view(id, seen, self._speeds[id], assignments.burden(id)) for id, seen in self._seen.items()]
        pool = pool_view(self._backlog, self._lengths)
        if all(pool.fits(worker) for worker in workers):
            return FleetView(workers=workers, pool=pool)
        return FleetView(
            workers=workers,
            pool=pool,
            shards=[view for id, seen in self._seen.items() for view in shard_views(assignments.of(id), seen)],
            rows=[
                view
                for id, seen in self._seen.items()
                for view in row_views(assignments.of(id), seen, assignments, self._lengths)
            ],
            copies_left=max(COPIES, int(COPIES_SHARE * len(self._prompts))) - self._simulation.outcome.copies,
        )
