"""The loop that carries a job out: intake -> ledger -> pool -> shards -> results -> ledger. Sole user of the ledger.

It performs what the pure parts decide (`scheduler`, `suspects`, `assignments`); faults end in one recovery path:
rows that come back without a result go back to the pool.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from coordinator.assignments import Assignments, Flight
from coordinator.backlog import Backlog
from coordinator.dispatch import Dispatch
from coordinator.faults import Faults
from coordinator.feed import Feed
from coordinator.ledger import Ledger
from coordinator.member import Member, OutputLengths
from coordinator.prefix import NO_PREFIXES, PrefixSearch
from coordinator.records import Counts, JobRecord, NewRow, OpenRow, Shape, StoredRow
from coordinator.scheduler import Cut, PoolView, WorkerView, cuts, seconds
from fleet.errors import ModelError
from fleet.job import Sampling
from fleet.messages import Crashed, Finished, Message, Returned, RowResult, RowWork, Shard

log = logging.getLogger(__name__)

#: Result messages taken from a worker's stream in one turn.
TAKE = 64
#: Recorded rows read at once to look for prefixes: their tokens are in memory together.
READ = 100


class Reducer(Protocol):
    """Makes the next level of a long document, see `intake.Intake.reduce`."""

    def __call__(self, texts: Sequence[str], *, sampling: Sampling, max_tokens: int) -> tuple[NewRow, ...]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView:
    """How far the run is, for the progress bar."""

    counts: Counts
    intake_ended: bool
    #: new tokens per second over the last minute
    output_tps: float
    #: prompt tokens per second over the last minute
    prompt_tps: float
    #: rows computed in this run
    computed: int
    #: seconds of work left over all workers
    left_s: float
    #: in words
    state: str


class Controller:
    """Runs one job on the members it has until every request is terminal."""

    def __init__(
        self,
        job: JobRecord,
        *,
        ledger: Ledger,
        dispatch: Dispatch,
        members: Iterable[Member],
        reduce: Reducer,
        share_prefixes: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.job = job
        self.ledger = ledger
        self.dispatch = dispatch
        self.members = {member.id: member for member in members}
        self.backlog = Backlog()
        self.assignments = Assignments()
        self.faults = Faults(ledger, self.assignments, dispatch, hopeful=ledger.counts(job.id).done > 0)
        self.outputs = OutputLengths()
        self.prefixes = PrefixSearch(share=share_prefixes)
        self.clock = clock
        #: rows recorded in this run, computed by a worker
        self.computed = 0
        #: ids of crashes and returns dealt with; a worker tells them again to a wiped broker
        self._told: set[str] = set()
        #: when work began, by the clock, until the first shard is sent
        self._began_s: float | None = clock()
        self._reduce = reduce

    # -- in ----------------------------------------------------------------------------------------

    def take_in(self, feed: Feed, signature: str) -> bool:
        """Moves a prepared chunk into the ledger and the pool; False when none was ready. `signature` is that of the
        input before it was read: what is changed meanwhile is then read again by the next run."""
        if feed.ended:
            return False
        chunk = feed.poll()
        if chunk is not None:
            self.prefixes.add(row.tokens for request in chunk for row in request.rows)
            self.backlog.add(self.ledger.add_requests(self.job.id, chunk))
            if any(request.shape is Shape.REDUCE for request in chunk):
                self._reduce_ready()
        elif feed.ended:
            self.prefixes.freeze()
            self.ledger.finish_intake(self.job.id, signature)
        return chunk is not None

    def take_up(self) -> None:
        """Fills the pool from a ledger whose intake is complete."""
        for rows in self.ledger.open_rows(self.job.id):
            self._sample(rows)
            self.backlog.add(rows)
        self.prefixes.freeze()
        self._reduce_ready()

    def _sample(self, rows: Sequence[OpenRow]) -> None:
        for start in range(0, len(rows), READ):
            if self.prefixes.frozen:
                return
            stored = self.ledger.rows([row.id for row in rows[start : start + READ]])
            self.prefixes.add(row.tokens for row in stored)

    # -- results -----------------------------------------------------------------------------------

    def absorb(self) -> bool:
        """Records what the workers' streams hold, then deletes it there; False when there was nothing."""
        heard = False
        for member in self.members.values():
            entries = self.dispatch.results(member.id, TAKE)
            if not entries:
                continue
            heard = True
            self._record(member, [message for _, message in entries])
            self.dispatch.delete(member.id, [entry for entry, _ in entries])
        return heard

    def _record(self, member: Member, messages: Sequence[Message]) -> None:
        results = [row for message in messages if isinstance(message, Finished) for row in message.rows]
        self._commit(member, results)
        for message in messages:
            if isinstance(message, Crashed | Returned) and message.id not in self._told:
                if message.id:
                    self._told.add(message.id)
                if isinstance(message, Crashed):
                    self.faults.crashed(member, message)
                else:
                    self._returned(message)

    def _commit(self, member: Member, results: Sequence[RowResult]) -> None:
        accepted = [row for row in results if self.assignments.may_answer(member.id, row.id)]
        if len(accepted) < len(results):
            log.info("%d rows from %s are not owed: dropped", len(results) - len(accepted), member.id)
        if not accepted:
            return
        reducible = self.ledger.commit(member.id, accepted)
        for result in accepted:
            flight = self.assignments.shard_of(result.id)
            if flight is not None:
                self.outputs.finished(flight.rows[result.id], result.output_tokens, result.finish)
            self.assignments.recorded(result.id)
            self.faults.finished(member, result.id)
        self.computed += len(accepted)
        if reducible:
            self._reduce_ready()

    def _returned(self, message: Returned) -> None:
        rows = self.assignments.release(message.rows)
        if message.reason:
            raise ModelError(message.reason)
        self.give_back(rows)

    def give_back(self, rows: Iterable[OpenRow]) -> None:
        """Rows without a result go back to the pool, ahead of the rest; suspects wait for a new trial."""
        self.backlog.put_back(self.faults.keep_suspects(rows))

    def _reduce_ready(self) -> None:
        """Makes the rows that summarize the parts' summaries of long documents, level after level."""
        while requests := self.ledger.ready_to_reduce(self.job.id):
            for request in requests:
                sampling, max_tokens = self.ledger.part_settings(request)
                rows = self._reduce(self.ledger.part_texts(request), sampling=sampling, max_tokens=max_tokens)
                self.backlog.add(self.ledger.add_parts(request, rows))

    # -- out ---------------------------------------------------------------------------------------

    def send_work(self) -> bool:
        """Sends the shards that are due; False when none was."""
        shards: list[tuple[str, Shard]] = []
        for member in self.members.values():
            for rows in self.faults.trials():
                shards += self._cut(member, rows, exclusive=True)
        for cut in cuts([self._view(member) for member in self.members.values()], self._pool()):
            shards += self._cut(self.members[cut.worker], self._take(cut), exclusive=False)
        # All are in flight now: one that does not reach its queue is missed there, and its rows come back.
        for worker, shard in shards:
            self.dispatch.send(worker, shard)
        if shards and self._began_s is not None:
            log.info("first shard sent %.2f s after the start", self.clock() - self._began_s)
            self._began_s = None
        return bool(shards)

    def _take(self, cut: Cut) -> list[OpenRow]:
        rows = self.backlog.take(rows=cut.rows, tokens=cut.tokens, longest=cut.longest)
        if not rows and cut.longest is not None:
            # No worker can hold what is left: one that is sent all the same answers with figures.
            rows = self.backlog.take(rows=cut.rows, tokens=cut.tokens, longest=None)
        return rows

    def _cut(self, member: Member, rows: Sequence[OpenRow], *, exclusive: bool) -> Iterator[tuple[str, Shard]]:
        """Shards of rows of one sampling group, one for each prefix; what runs exclusively runs without any."""
        if not rows:
            return
        opened = {row.id: row for row in rows}
        known = NO_PREFIXES if exclusive else self.prefixes.found
        for prefix, stored in known.split(self.ledger.rows(list(opened))).items():
            shard = Shard(
                id=member.shard_id(),
                job=self.job.id,
                model=self.job.spec.model,
                model_hash=self.job.spec.model_hash,
                sampling=self.ledger.sampling(rows[0].sampling),
                prefix=prefix,
                rows=tuple(_work(row, len(prefix)) for row in stored),
                salt=self.job.salt,
                exclusive=exclusive,
            )
            held = {row.id: opened[row.id] for row in stored}
            self.assignments.send(Flight(id=shard.id, worker=member.id, rows=held, exclusive=exclusive))
            yield member.id, shard

    # -- views -------------------------------------------------------------------------------------

    def _view(self, member: Member) -> WorkerView:
        bare = member.view(0.0)
        rows = [row for flight in self.assignments.of(member.id) for row in flight.rows.values()]
        output = self.outputs.expected(sum(row.max_tokens for row in rows))
        computed = self.prefixes.found.computed_share * sum(row.length for row in rows)
        return member.view(seconds(bare, computed, output))

    def _pool(self) -> PoolView:
        return PoolView(
            rows=len(self.backlog),
            input_tokens=self.backlog.input_tokens,
            output_tokens=self.outputs.expected(self.backlog.max_tokens),
            computed_share=self.prefixes.found.computed_share,
        )

    def view(self, *, intake_ended: bool, state: str) -> RunView:
        """How far the run is."""
        views = [self._view(member) for member in self.members.values()]
        pool = self._pool()
        speed = sum(1 / max(seconds(view, pool.computed_tokens, pool.output_tokens), 1e-9) for view in views)
        pool_s = 1 / speed if pool.rows and speed else 0.0
        return RunView(
            counts=self.ledger.counts(self.job.id),
            intake_ended=intake_ended,
            output_tps=sum(member.throughput.output_tps for member in self.members.values()),
            prompt_tps=sum(member.throughput.prompt_tps for member in self.members.values()),
            computed=self.computed,
            left_s=pool_s + max((view.outstanding_s for view in views), default=0.0),
            state=state,
        )


def _work(row: StoredRow, prefix_bytes: int) -> RowWork:
    return RowWork(id=row.id, key=row.key, tokens=row.tokens[prefix_bytes:], max_tokens=row.max_tokens)
