"""One job at work: its pool of open rows, what is known of their prefixes and lengths, and its input while it is read.

Rows get in from intake or from the ledger, leave for a worker, and come back after a fault. Which worker they go to
is the controller's business.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from coordinator.intake.feed import Feed
from coordinator.ledger.ledger import Ledger
from coordinator.records import Counts, JobRecord, NewRow, OpenRow, Shape, StoredRow
from coordinator.scheduling.backlog import Backlog
from coordinator.scheduling.fleet_view import Cut, PoolView
from coordinator.scheduling.lengths import Lengths
from coordinator.scheduling.picture import pool_view
from coordinator.scheduling.prefix import NO_PREFIXES, PrefixSearch
from fleet.errors import FleetError
from fleet.job import Finish, Sampling, Task
from fleet.messages import RowResult, RowWork, Shard

#: Recorded rows read at once to look for prefixes: their tokens are in memory together.
READ = 100
#: Rows that may be computed twice: so many, or this share of the job's. Simulated with 2,000 rows on 8 machines, a run
#: with a straggler took 1.33 of the least time with 40 copies and 1.17 with the 71 it asked for.
COPIES, COPIES_SHARE = 100, 0.02


class Reducer(Protocol):
    """Makes the next level of a long document, see `intake.Intake.reduce`."""

    def __call__(self, texts: Sequence[str], *, sampling: Sampling, max_tokens: int) -> tuple[NewRow, ...]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Rows that leave together: a shard without a name, and the rows as the pool knows them."""

    #: `id` is empty until a worker is chosen
    shard: Shard
    rows: dict[int, OpenRow]

    def named(self, id: str) -> Shard:
        """The shard under its id."""
        return replace(self.shard, id=id)


class JobRun:
    """A job that is worked on. `feed` is its input as far as it must still be read; None when the ledger has it all,
    and `signature` that of the input before it was read: what changes meanwhile is then read again by the next run."""

    def __init__(
        self,
        job: JobRecord,
        ledger: Ledger,
        reduce: Reducer,
        *,
        feed: Feed | None,
        signature: str = "",
        share_prefixes: bool = True,
        claim: Callable[[int, Iterable[OpenRow]], tuple[Iterable[OpenRow], Iterable[OpenRow]]] = lambda _, rows: (
            rows,
            (),
        ),
    ) -> None:
        """`claim` gives those of the job's rows that are for its pool, and those that another job has: of the rest an
        earlier coordinator's workers must tell."""
        self.job = job
        self.backlog = Backlog()
        #: open rows that another job has in flight or on trial, by id
        self.left: dict[int, OpenRow] = {}
        self.lengths = Lengths()
        # what embeds reads a text as a whole: there is no state behind its first tokens
        self.prefixes = PrefixSearch(share=share_prefixes and job.spec.task is not Task.EMBED)
        #: rows recorded since the run began, computed by a worker
        self.computed = 0
        #: rows that came back without a result
        self.retried = 0
        #: rows that were sent to a second worker
        self.copied = 0
        #: why nobody works on it any more, None while somebody may
        self.error: FleetError | None = None
        self._ledger = ledger
        self._reduce = reduce
        self._feed = feed
        self._signature = signature
        self._claim = claim

    # -- in ----------------------------------------------------------------------------------------

    @property
    def read(self) -> bool:
        """True once the ledger has the whole input."""
        return self._feed is None or self._feed.ended

    @property
    def model(self) -> tuple[str, str]:
        """What a worker must load: folder or hub id, and the hash of the weights."""
        return self.job.spec.model, self.job.spec.model_hash

    def counts(self) -> Counts:
        """How far it is."""
        return self._ledger.counts(self.job.id)

    def done(self) -> bool:
        """Whether every request has ended."""
        return self.read and not self.counts().open

    def take_in(self) -> bool:
        """Moves a prepared chunk into the ledger and the pool; False when none was ready. Raises what intake did."""
        if self._feed is None or self._feed.ended:
            return False
        chunk = self._feed.poll()
        if chunk is not None:
            self.prefixes.add(row.tokens for request in chunk for row in request.rows)
            self._add(self._ledger.add_requests(self.job.id, chunk))
            if any(request.shape is Shape.REDUCE for request in chunk):
                self.reduce_ready()
        elif self._feed.ended:
            self.prefixes.freeze()
            self._ledger.finish_intake(self.job.id, self._signature)
        return chunk is not None

    def take_up(self) -> None:
        """Fills the pool from a ledger that has the whole input."""
        for rows in self._ledger.open_rows(self.job.id):
            self._sample(rows)
            self._add(rows)
        self.prefixes.freeze()
        self.reduce_ready()

    def reduce_ready(self) -> None:
        """Makes the rows that summarize the parts' summaries of long documents, level after level."""
        while requests := self._ledger.ready_to_reduce(self.job.id):
            for request in requests:
                sampling, max_tokens = self._ledger.part_settings(request)
                rows = self._reduce(self._ledger.part_texts(request), sampling=sampling, max_tokens=max_tokens)
                self._add(self._ledger.add_parts(request, rows))

    def _add(self, rows: Iterable[OpenRow]) -> None:
        free, left = self._claim(self.job.id, rows)
        self.backlog.add(free)
        self.leave(left)

    def leave(self, rows: Iterable[OpenRow]) -> None:
        """Rows that another job has: its result is this job's, too."""
        self.left.update((row.id, row) for row in rows)

    def regain(self, rows: Iterable[int]) -> None:
        """Rows that nobody has any more: those that were left to another job are in this pool as well."""
        free, left = self._claim(self.job.id, [self.left.pop(row) for row in rows if row in self.left])
        self.backlog.put_back(free)
        self.leave(left)

    def put_back(self, rows: Sequence[OpenRow]) -> None:
        """Rows without a result: they go out ahead of the rest."""
        self.retried += len(rows)
        self.backlog.put_back(rows)

    def close(self) -> None:
        """Reads no more input."""
        if self._feed is not None:
            self._feed.close()

    def _sample(self, rows: Sequence[OpenRow]) -> None:
        for start in range(0, len(rows), READ):
            if self.prefixes.frozen:
                return
            stored = self._ledger.rows([row.id for row in rows[start : start + READ]])
            self.prefixes.add(row.tokens for row in stored)

    # -- out ---------------------------------------------------------------------------------------

    def take(self, cut: Cut, *, anyhow: bool) -> list[OpenRow]:
        """The rows of a cut; with `anyhow` also such as the worker cannot hold, when there are no others: one that
        gets them all the same answers with figures."""
        self.backlog.order_by(self.lengths.cost, self.lengths.rows)
        rows = self.backlog.take(rows=cut.rows, tokens=cut.tokens, longest=cut.longest, back=cut.ahead)
        if not rows and cut.longest is not None and anyhow:
            rows = self.backlog.take(rows=cut.rows, tokens=cut.tokens, longest=None)
        return [row.of_job(self.job.id) for row in rows]

    def loads(self, rows: Sequence[OpenRow], *, exclusive: bool) -> Iterator[Load]:
        """Shards of rows of one sampling group, one for each prefix; what runs exclusively runs without any. Rows
        that have ended meanwhile, for another job, are left out."""
        opened = {row.id: row for row in rows}
        stored = self._ledger.rows(list(opened))
        known = NO_PREFIXES if exclusive else self.prefixes.found
        for prefix, some in known.split(stored).items():
            shard = Shard(
                id="",
                job=self.job.id,
                model=self.job.spec.model,
                model_hash=self.job.spec.model_hash,
                sampling=self._ledger.sampling(some[0].sampling),
                prefix=prefix,
                rows=tuple(_work(row, len(prefix)) for row in some),
                salt=self.job.salt,
                exclusive=exclusive,
            )
            yield Load(shard=shard, rows={row.id: opened[row.id] for row in some})

    # -- what is known -----------------------------------------------------------------------------

    @property
    def computed_share(self) -> float:
        """Prompt tokens that no shared prefix saves."""
        return self.prefixes.found.computed_share

    def pool(self) -> PoolView:
        """What is left to dispatch, as the policy sees it."""
        return pool_view(self.backlog, self.lengths, self.computed_share)

    def copies_left(self) -> int:
        """Rows that may still be sent to a second worker; none before the last rows have come."""
        return max(COPIES, int(COPIES_SHARE * self.counts().requests)) - self.copied if self.read else 0

    def recorded(self, row: OpenRow, result: RowResult) -> None:
        """Learns from a row that has its result."""
        self.computed += 1
        if result.finish is not Finish.ERROR:
            self.lengths.ended(row.length, result.output_tokens)


def _work(row: StoredRow, prefix_bytes: int) -> RowWork:
    return RowWork(id=row.id, key=row.key, tokens=row.tokens[prefix_bytes:], max_tokens=row.max_tokens)
