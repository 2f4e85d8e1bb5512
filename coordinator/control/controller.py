"""The loop's work: jobs' rows to workers as shards, results to the ledger. Sole user of the ledger in its thread.

It performs what the pure parts decide (`work_order`, `scheduler`, `suspects`, `assignments`); members and jobs come and
go while it runs. Faults end in one recovery path: rows that come back without a result go back to their job's pool.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from coordinator.broker.dispatch import Dispatch
from coordinator.control.faults import Faults, HopelessJobError
from coordinator.control.job_run import JobRun
from coordinator.control.member import Member, Presence
from coordinator.control.roster import Roster
from coordinator.control.run_view import RunView, run_view
from coordinator.control.sender import Sender
from coordinator.control.succession import Succession
from coordinator.ledger.ledger import Ledger
from coordinator.ledger.schema import job_of
from coordinator.records import OpenRow
from coordinator.scheduling.assignments import Flight
from fleet.errors import BrokerError, FleetError, ModelError
from fleet.messages import Cancel, Crashed, Finished, Message, Returned, RowResult

log = logging.getLogger(__name__)

T = TypeVar("T")

#: Result messages taken from a worker's stream in one turn.
TAKE = 64


class Controller:
    """Runs the jobs it has on the members it has."""

    def __init__(
        self,
        *,
        ledger: Ledger,
        dispatch: Dispatch,
        tell: Callable[[str], None] = log.info,
        clock: Callable[[], float] = time.monotonic,
        lasting: bool = False,
    ) -> None:
        """`tell` takes a sentence on what happened, for people. With `lasting`, who was sent which row is recorded:
        workers that outlive this coordinator then answer to the next one."""
        self.ledger = ledger
        self.dispatch = dispatch
        self.clock = clock
        self.tell = tell
        self.roster = Roster()
        self.members = self.roster.members
        self.runs = self.roster.runs
        self.assignments = self.roster.assignments
        self.faults = Faults(ledger, self.assignments, dispatch, self.members)
        self._sender = Sender(self.roster, self.faults, dispatch, tell, ledger.note_sent if lasting else None)
        self._succession = Succession(self.roster, ledger.sent_rows() if lasting else ())
        #: rows recorded since the start, computed by a worker
        self.computed = 0
        #: when work began, by the clock, until the first shard is sent
        self._began_s: float | None = clock()

    # -- who and what ------------------------------------------------------------------------------

    def add_member(self, member: Member) -> None:
        """A worker that is expected from now on."""
        member.heard_s = self.clock()
        self.members[member.id] = member

    def remove_member(self, member: Member) -> None:
        """A worker that is expected no more; its rows run elsewhere."""
        self.lose(member)
        del self.members[member.id]

    def add_job(self, run: JobRun) -> None:
        """A job to work on from now on."""
        self.runs[run.job.id] = run

    def claim(self, job: int, rows: Iterable[OpenRow]) -> tuple[list[OpenRow], list[OpenRow]]:
        """The rows of a job that may go to its pool, and those that are kept for another job: not such as a worker
        may still have of an earlier coordinator."""
        return self._succession.claim(job, rows)

    def make_way(self, run: JobRun) -> None:
        """A job's rows are to leave before those of lower priority that no worker has begun with."""
        for member in self.members.values():
            for flight in self.assignments.of(member.id):
                other = self.runs.get(flight.job)
                later = other is not None and other.job.priority < run.job.priority and not flight.exclusive
                if later and self.dispatch.take_back(member.id, flight.id):
                    self.give_back(self.assignments.release_shard(flight.id))

    def drop_job(self, job: int, error: FleetError | None = None) -> None:
        """Works on a job no more, because of `error` or by somebody's wish: its rows are cancelled where they run,
        and those that other jobs had left to it are theirs."""
        run = self.runs.pop(job)
        run.error = error
        run.close()
        rows = [*self.faults.forget(job), *self._succession.drop(job)]
        for member in self.members.values():
            held = [flight for flight in self.assignments.of(member.id) if flight.job == job]
            dropped = [row for flight in held for row in flight.rows]
            rows += [row.id for flight in held for row in self.assignments.release_shard(flight.id)]
            self._call_off(member, [flight.id for flight in held], dropped)
        self.roster.regain(rows)

    def call_off_unneeded(self, member: Member) -> None:
        """Rows that an earlier coordinator sent here, for a job that was given up since, are cancelled."""
        if unneeded := self.ledger.unneeded(self._succession.unclaimed(member)):
            self._succession.forget(member, unneeded)
            self._call_off(member, (), unneeded)

    def _call_off(self, member: Member, shards: Sequence[str], rows: Sequence[int]) -> None:
        """Tells a worker to forget these; where it cannot be told it answers them in vain."""
        try:
            for shard in shards:
                self.dispatch.take_back(member.id, shard)
            if rows:
                self.dispatch.control(member.id, Cancel(rows=tuple(rows)))
        except BrokerError as error:
            log.warning("%s is not told of %d rows called off: %s", member.name, len(rows), error)

    # -- results -----------------------------------------------------------------------------------

    def absorb(self) -> bool:
        """Records what the workers' streams hold, then deletes it there; False when there was nothing."""
        heard = self.dispatch.heard(list(self.members), TAKE)
        for worker, entries in heard.items():
            self._record(self.members[worker], [message for _, message in entries])
            self.dispatch.delete(worker, [entry for entry, _ in entries])
        return bool(heard)

    def _record(self, member: Member, messages: Sequence[Message]) -> None:
        self._succession.told(member, messages)
        self._commit(member, [row for message in messages if isinstance(message, Finished) for row in message.rows])
        for message in messages:
            if isinstance(message, Crashed | Returned) and self.ledger.hear(message.id):
                if isinstance(message, Crashed):
                    self.blame(self.faults.crashed, member, message)
                    if len(self.faults):  # trials come first, not behind minutes of work
                        self.recall(member, self.dispatch.queued(member.id))
                else:
                    self._returned(member, message)

    def _commit(self, member: Member, results: Sequence[RowResult]) -> None:
        accepted = [row for row in results if self.assignments.may_answer(member.id, row.id)]
        if len(accepted) < len(results):
            log.info("%d rows from %s are not owed: dropped", len(results) - len(accepted), member.id)
        if not accepted:
            return
        reducible = self.ledger.commit(member.id, accepted)
        doubles = [double for result in accepted for double in self._note(member, result)]
        self._end_doubles(doubles)
        self.computed += len(accepted)
        member.rows_done += len(accepted)
        for job in {job_of(request) for request in reducible}:
            if job in self.runs:
                self.runs[job].reduce_ready()

    def _note(self, member: Member, result: RowResult) -> list[tuple[Flight, int]]:
        """Takes note of a row that is recorded; where else it still runs."""
        flight = self.assignments.shard_of(result.id)
        row = flight.rows[result.id] if flight is not None else None
        if row is not None and row.job in self.runs:
            self.runs[row.job].recorded(row, result)
        flights = self.assignments.recorded(result.id)
        self.faults.finished(result.id, row.job if row is not None else 0)
        for run in self.runs.values():
            run.left.pop(result.id, None)
        return [(flight, result.id) for flight in flights if flight.worker != member.id]

    def _end_doubles(self, doubles: Sequence[tuple[Flight, int]]) -> None:
        """The first result of a copied row is there: it is called off wherever else it is."""
        for worker in {flight.worker for flight, _ in doubles} & self.members.keys():
            mine = [(flight, row) for flight, row in doubles if flight.worker == worker]
            whole = [flight.id for flight, _ in mine if not flight.rows]
            self._call_off(self.members[worker], whole, [row for _, row in mine])

    def _returned(self, member: Member, message: Returned) -> None:
        rows = self.assignments.release(message.rows, member.id)
        if message.reason:
            for job in {row.job for row in rows} & self.runs.keys():
                self._refused(member, self.runs[job], message.reason)
        self.give_back(rows)
        if message.reason:  # what still waits there would only be refused like this
            self.recall(member, self.dispatch.queued(member.id))

    def _refused(self, member: Member, run: JobRun, reason: str) -> None:
        """A worker cannot load a job's model; when no worker that is there can, the job fails."""
        if run.model not in member.refused:
            self.tell(f"{member.name} cannot work on job {run.job.id}: {reason}")
        member.refused[run.model] = reason
        there = [other for other in self.members.values() if other.presence is not Presence.LOST]
        if all(run.model in other.refused for other in there):
            self.drop_job(run.job.id, ModelError(reason if member.local else f"on {member.name}: {reason}"))

    def blame(self, charge: Callable[[Member, T], None], member: Member, of: T) -> None:
        """Does what `charge` says follows from a crash; a job of which nothing can be hoped ends with it."""
        try:
            charge(member, of)
        except HopelessJobError as error:
            if error.job in self.runs:
                self.drop_job(error.job, error)

    # -- back --------------------------------------------------------------------------------------

    def give_back(self, rows: Iterable[OpenRow]) -> None:
        """Rows without a result go back to the pool of their job, ahead of the rest, and of the jobs that had left them
        to it; suspects wait for a new trial."""
        pools: dict[int, list[OpenRow]] = {}
        for row in self.faults.keep_suspects([row for row in rows if row.job in self.runs]):
            pools.setdefault(row.job, []).append(row)
        for job, some in pools.items():
            self.runs[job].put_back(some)
            self.roster.regain([row.id for row in some])

    def lose(self, member: Member) -> None:
        """A worker is gone: its finished rows are recorded, all others go back, its keys are deleted."""
        while self.absorb():
            pass
        member.lost()
        self.give_back(self.assignments.release_worker(member.id))
        self.dispatch.purge(member.id)

    def vanished(self, member: Member) -> None:
        """A worker's process went without a word, with rows in its batch: they go back, and are remembered."""
        while self.absorb():
            pass
        running, member.beat = member.running, None
        if running:
            self.blame(self.faults.vanished, member, running)
        self.give_back(self.assignments.release(running, member.id))

    def recall(self, member: Member, queued: set[str]) -> None:
        """Takes back those of the `queued` shards that the worker's agent has not taken by now."""
        for flight in self.assignments.of(member.id):
            if flight.id in queued and self.dispatch.take_back(member.id, flight.id):
                self.give_back(self.assignments.release_shard(flight.id))

    def call_off_waiting(self, member: Member) -> None:
        """Takes back every row of a worker that is not in its batch."""
        running = set(member.running)
        flights = self.assignments.of(member.id)
        waiting = [row for flight in flights for row in flight.rows if row not in running]
        idle = [flight.id for flight in flights if not running & flight.rows.keys()]
        unclaimed = [row for row in self._succession.unclaimed(member) if row not in running]
        rows = self.assignments.release(waiting, member.id)
        self._succession.forget(member, unclaimed)
        self._call_off(member, idle, [*waiting, *unclaimed])
        self.give_back(rows)

    # -- out ---------------------------------------------------------------------------------------

    def take_over(self) -> None:
        """Settles what became of the shards that an earlier coordinator sent, as far as the workers told by now."""
        self.give_back(self._succession.look())

    @property
    def owed(self) -> int:
        """Rows that are with the workers, or may be."""
        return len(self.assignments) + len(self._succession)

    def send_work(self) -> bool:
        """Sends the shards that are due; False when none was."""
        sent = self._sender.send()
        if sent and self._began_s is not None:
            log.info("first shard sent %.2f s after the start", self.clock() - self._began_s)
            self._began_s = None
        return sent

    def view(self, run: JobRun, *, state: str) -> RunView:
        """How far a job is."""
        return run_view(self.roster, run, state=state)
