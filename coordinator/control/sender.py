"""Performs what the policy decides: rows out of the pools, into shards, to the workers' queues, and from one worker to
another."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from coordinator.broker.dispatch import Dispatch
from coordinator.control.faults import Faults
from coordinator.control.job_run import JobRun
from coordinator.control.member import Member
from coordinator.control.roster import Roster
from coordinator.records import OpenRow
from coordinator.scheduling.assignments import Flight
from coordinator.scheduling.fleet_view import Copy, Cut, Decision, FleetView, Recall, Steal
from coordinator.scheduling.moves import Moves
from coordinator.scheduling.picture import row_views, shard_views, weigh
from coordinator.scheduling.scheduler import decide
from coordinator.scheduling.shares import Shares
from coordinator.scheduling.work_order import offers
from fleet.messages import Cancel, Shard

#: A shard, the worker it is for, and whether it goes ahead of what waits there.
Addressed = tuple[str, Shard, bool]


class Sender:
    """Sends work, a few times a second."""

    def __init__(
        self,
        roster: Roster,
        faults: Faults,
        dispatch: Dispatch,
        tell: Callable[[str], None],
        note: Callable[[Iterable[tuple[int, str, str]]], None] | None = None,
    ) -> None:
        """`note` is told which row goes to which worker in which shard, before it goes."""
        self._roster = roster
        self._faults = faults
        self._dispatch = dispatch
        self._tell = tell
        self._note = note
        self._shares = Shares()

    def send(self) -> bool:
        """Sends the shards that are due; False when none was."""
        moves = Moves()
        shards = [*self._trials(), *self._work(moves)]
        names = {member.id: member.name for member in self._roster.members.values()}
        there = {member.id: member.speed for member in self._roster.takers()}
        if shards and self._note is not None:
            self._note([(row.id, worker, shard.id) for worker, shard, _ in shards for row in shard.rows])
        # All are in flight now: one that does not reach its queue is missed there, and its rows come back.
        for worker, shard, ahead in _in_turn(shards):
            self._dispatch.send(worker, shard, ahead=ahead)
        # Now, when they are first in the queue: an agent that has room takes what is.
        for worker in {worker: None for worker, shard, ahead in shards if ahead and not shard.exclusive}:
            self._make_room(self._roster.members[worker])
        for sentence in (*moves.told(names), *self._shares.told(there, names)):
            self._tell(sentence)
        return bool(shards)

    def _work(self, moves: Moves) -> list[Addressed]:
        """For each job, in order, what the policy decides for the workers that are to work for it; those for whom no
        pool has anything may take from others."""
        roster = self._roster
        there = roster.takers()
        trusted = [member for member in there if not self._faults.doubts(member)]
        hands = [roster.hands(member) for member in trusted or there]
        offered = offers(roster.wanted(), hands, roster.fits)
        busy = {worker for workers in offered.values() for worker in workers}
        idle = [each for each in hands if each.worker not in busy]
        shards: list[Addressed] = []
        for run in roster.in_order():
            takers = [each.worker for each in idle if each.may_take(run.model)]
            takers += offered.get(run.job.id, [])
            for decision in decide(self._view(run, takers)) if takers else ():
                shards += self._perform(run, decision, moves)
        return shards

    def _view(self, run: JobRun, takers: Sequence[str]) -> FleetView:
        roster, assignments = self._roster, self._roster.assignments
        held = {
            member.id: [flight for flight in assignments.of(member.id) if flight.job == run.job.id]
            for member in roster.members.values()
        }
        there = [member for member in roster.members.values() if held[member.id] or member.id in takers]
        workers = [roster.view(member, run, may_take=member.id in takers) for member in there]
        pool = run.pool()
        if all(pool.fits(worker) for worker in workers if worker.may_take):
            return FleetView(workers=workers, pool=pool)
        seen = {member.id: member.seen(run.job.spec.model_hash) for member in there}
        return FleetView(
            workers=workers,
            pool=pool,
            shards=[view for id, sight in seen.items() for view in shard_views(held[id], sight)],
            rows=[view for id, sight in seen.items() for view in row_views(held[id], sight, assignments, run.lengths)],
            copies_left=run.copies_left(),
        )

    def _perform(self, run: JobRun, decision: Decision, moves: Moves) -> list[Addressed]:
        members, assignments = self._roster.members, self._roster.assignments
        match decision:
            case Cut(worker=worker, longest=longest, ahead=ahead):
                anyhow = not ahead and longest is not None and not self._roster.holds_more(run, longest)
                return list(self._load(run, members[worker], run.take(decision, anyhow=anyhow), ahead=ahead))
            case Steal(shard=shard, source=source, target=target):
                if not self._dispatch.take_back(source, shard):
                    assignments.flights[shard].taken = True
                    return []
                rows = assignments.release_shard(shard)
                moves.stolen(source, target, len(rows))
                return list(self._load(run, members[target], rows))
            case Recall(rows=ids, source=source, target=target):
                self._dispatch.control(source, Cancel(rows=ids))  # first: a broker that refuses it loses no row
                rows = assignments.release(ids, source)
                moves.stolen(source, target, len(rows))
                return list(self._load(run, members[target], rows))
            case Copy(row=row, source=source, target=target):
                flight = assignments.shard_of(row)
                if flight is None or assignments.has(target, row):
                    return []
                run.copied += 1
                moves.copied(source, target)
                return list(self._load(run, members[target], [flight.rows[row]], copy=True))

    def _make_room(self, member: Member) -> None:
        """What waits with a worker's agent goes back to its pool: it would run before rows that are to go ahead, and
        the agent takes those no sooner than it has begun with it."""
        assignments, beat = self._roster.assignments, member.beat
        if beat is None:
            return
        there = [flight for flight in assignments.of(member.id) if flight.id in beat.shards]
        plain = [flight for flight in there if not flight.exclusive and not flight.copy]
        running = set(member.running)
        rows = tuple(row for flight in plain for row in flight.rows if row not in running)
        if rows:
            self._dispatch.control(member.id, Cancel(rows=rows))
        self._roster.return_unbegun(assignments.release(rows, member.id))

    def _trials(self) -> list[Addressed]:
        """Suspects: each trial for a worker that they crashed least, and of those the one that has fewest trials,
        ahead of minutes of work that wait there."""
        shards: list[Addressed] = []
        for rows in list(self._faults.trials()):
            run = self._roster.runs[rows[0].job]
            takers = [member for member in self._roster.takers() if self._roster.hands(member).may_take(run.model)]
            if not takers:
                self._faults.keep_suspects(rows)
                continue
            member = min(takers, key=lambda each: (self._faults.crashes_on(rows, each), self._trials_with(each)))
            shards += self._load(run, member, rows, exclusive=True, ahead=True)
        return shards

    def _trials_with(self, member: Member) -> int:
        return sum(flight.exclusive for flight in self._roster.assignments.of(member.id))

    def _load(
        self,
        run: JobRun,
        member: Member,
        rows: Sequence[OpenRow],
        *,
        exclusive: bool = False,
        copy: bool = False,
        ahead: bool = False,
    ) -> Iterator[Addressed]:
        """The shards of these rows, which are in flight from here on; rows in flight for another job, or on trial
        there, are left to it."""
        assignments = self._roster.assignments
        taken = set() if copy else {row.id for row in rows if self._faults.taken(row.id)}
        run.leave(row for row in rows if row.id in taken)
        for load in run.loads([row for row in rows if row.id not in taken], exclusive=exclusive):
            shard = load.named(member.shard_id())
            flight = Flight(
                id=shard.id, worker=member.id, job=run.job.id, rows=load.rows, exclusive=exclusive, copy=copy
            )
            weigh(flight, run.lengths, run.computed_share)
            assignments.send(flight)
            yield member.id, shard, ahead


def _in_turn(shards: Sequence[Addressed]) -> list[Addressed]:
    """As they are to be sent: of those that go ahead of what waits the last first, which leaves the first in front."""
    return [*(each for each in reversed(shards) if each[2]), *(each for each in shards if not each[2])]
