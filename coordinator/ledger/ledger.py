"""The ledger: the record of every job, request, row and result, in one SQLite file of the state folder.

What it says is done is done; everything else can be lost and made again from it. One process writes, through one
Ledger that one thread uses at a time; others read beside it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from coordinator.ledger import jobs as ledger_jobs
from coordinator.ledger import results as ledger_results
from coordinator.ledger.answers import stream_answers
from coordinator.ledger.checks import check_ledger
from coordinator.ledger.lock import StateLock
from coordinator.ledger.requests import RequestBook
from coordinator.ledger.rows import HandedOut, RowBook, open_rows_of, stored_rows, unneeded
from coordinator.ledger.schema import first_request, job_of
from coordinator.ledger.settle import settle, touch_rows, touch_to_reduce
from coordinator.ledger.store import Store, check_exists
from coordinator.records import (
    Answer,
    Cleaned,
    Counts,
    JobRecord,
    JobSpec,
    JobStatus,
    NewRequest,
    NewRow,
    OpenRow,
    StoredRow,
)
from fleet.config import StateDir
from fleet.job import JobState, RowState, Sampling
from fleet.messages import RowResult

#: `fleet cancel` waits this long for a run's transaction to end, seconds.
CANCEL_BUSY_S = 5.0


class Ledger:
    """The record of one state folder. Every writing method is one transaction: all of it is on disk, or none."""

    def __init__(self, state: StateDir, store: Store, lock: StateLock | None, clock: Callable[[], float]) -> None:
        self._state = state
        self._store = store
        self._lock = lock
        self._clock = clock
        self._rows = RowBook(store)
        self._requests = RequestBook(store, self._rows)
        self._handed: dict[int, HandedOut] = {}

    @classmethod
    def open(cls, state: StateDir, clock: Callable[[], float] = time.time) -> Ledger:
        """For the process that works on the folder: creates what is missing and holds the exclusive lock.

        Raises StateLockedError naming the holder, StorageError when the file is damaged or of another version.
        """
        lock = StateLock.take(state)
        try:
            return cls(state, Store(state.ledger, write=True), lock, clock)
        except BaseException:
            lock.release()
            raise

    @classmethod
    def read(cls, state: StateDir) -> Ledger:
        """For looking only, also while another process writes; UsageError when the folder has no ledger."""
        check_exists(state)
        return cls(state, Store(state.ledger, write=False), None, time.time)

    @classmethod
    def cancel(cls, state: StateDir, job: int) -> JobRecord:
        """Marks a running job cancelled, without the lock, also while a run works on it; the job as it then is."""
        check_exists(state)
        store = Store(state.ledger, write=True, busy_s=CANCEL_BUSY_S)
        try:
            ledger_jobs.cancel_job(store, job)
            return ledger_jobs.job_status(store, job).record
        finally:
            store.close()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the file and gives the folder free; twice does no harm."""
        self._store.close()
        if self._lock is not None:
            self._lock.release()

    # -- jobs ------------------------------------------------------------------------------------

    def begin_job(
        self, spec: JobSpec, salt: str = "", *, priority: int = 0, submitted: bool = False
    ) -> tuple[JobRecord, bool]:
        """The job of this spec, made RUNNING again with what failed open again, and True; or a new one, and False.

        A salt names its own job; without one the newest job of the spec is taken up, whatever its salt.
        """
        with self._writing():
            found = ledger_jobs.find_job(self._store, spec, salt)
            job = ledger_jobs.new_job(self._store, spec, salt, self._clock()) if found is None else found
            if found is not None:
                ledger_jobs.reopen(self._store, job)
            ledger_jobs.set_terms(self._store, job, priority=priority, submitted=submitted)
        self._handed[job] = HandedOut()
        if self._lock is not None:
            self._lock.note_job(job)
        return self.job(job).record, found is not None

    def job(self, job: int) -> JobStatus:
        """One job; UsageError listing the known ids when there is none such."""
        return ledger_jobs.job_status(self._store, job)

    def jobs(self) -> list[JobStatus]:
        """Every job, oldest first."""
        return ledger_jobs.all_jobs(self._store)

    def counts(self, job: int) -> Counts:
        """How far the job is; one small read, whatever its size."""
        return self.job(job).counts

    def cancel_requested(self, job: int) -> bool:
        """Whether somebody cancelled the job since it was begun; for the run to ask between commits."""
        return self._store.row("SELECT 1 FROM cancellation WHERE job = ?", (job,)) is not None

    def set_model(self, job: int, model_hash: str) -> None:
        """Names the weights of a job that was begun before they were read; what identifies it stays."""
        with self._writing():
            ledger_jobs.set_model(self._store, job, model_hash)

    def end_job(self, job: int, state: JobState, problem: str = "") -> None:
        """Records that no one works on the job any more, and why where it failed."""
        with self._writing():
            self._store.run("UPDATE job SET state = ?, problem = ? WHERE id = ?", (state.value, problem, job))

    def clean(self, jobs: Sequence[int]) -> Cleaned:
        """Forgets these jobs, with the rows and results that no other job may need; then gives the disk back."""
        before = self._store.size_bytes()
        with self._writing():
            cleaned = ledger_jobs.forget_jobs(self._store, jobs)
        self._handed.clear()
        self._store.compact()
        return replace(cleaned, freed_bytes=max(0, before - self._store.size_bytes()))

    # -- intake ----------------------------------------------------------------------------------

    def reset_intake(self, job: int) -> None:
        """Forgets the job's requests and parts, to take its input in again; rows and results stay."""
        with self._writing():
            ledger_jobs.forget_requests(self._store, job)
        self._handed[job] = HandedOut()

    def add_requests(self, job: int, requests: Sequence[NewRequest]) -> list[OpenRow]:
        """Appends the requests; their rows that are open and were not given out in this run of the job.

        A request all of whose rows are known and done ends at once; `ready_to_reduce` tells of REDUCE ones that
        need their next level. A custom_id used before makes an error of the later request.
        """
        with self._writing():
            opened = self._requests.add(job, requests)
        return self._hand_out(job, opened)

    def finish_intake(self, job: int, signature: str) -> None:
        """Every line of the input is recorded; `signature` says which input that was."""
        with self._writing():
            self._store.run("UPDATE job SET intake_complete = 1, signature = ? WHERE id = ?", (signature, job))

    def open_rows(self, job: int, batch: int = 10_000) -> Iterator[list[OpenRow]]:
        """The open rows of the job's open requests, each once, in input order; the ledger may be written between
        two lists."""
        self._handed[job] = HandedOut()
        for rows in open_rows_of(self._store, job, batch):
            if fresh := self._hand_out(job, rows):
                yield fresh

    # -- rows ------------------------------------------------------------------------------------

    def rows(self, ids: Sequence[int]) -> list[StoredRow]:
        """Those of these rows that are open, with their tokens, in the order asked for."""
        return stored_rows(self._store, ids)

    def unneeded(self, rows: Sequence[int]) -> list[int]:
        """Those of these rows that no running job has an open request of; while one is read again it may name any."""
        return unneeded(self._store, rows) if rows and not ledger_jobs.reading_again(self._store) else []

    def sampling(self, id: int) -> Sampling:
        """The sampling of a group."""
        return self._rows.samplings.get(id)

    def commit(self, worker: str, results: Sequence[RowResult]) -> list[int]:
        """Records results; the first of a row counts and never changes, later and unknown ones are dropped.

        Requests whose rows have all ended end with them, in every job. Returns the REDUCE requests whose latest
        level is done and has several parts: each needs `add_parts`.
        """
        with self._writing():
            touch_rows(self._store, ledger_results.record_results(self._store, self._rows.samplings, worker, results))
            return settle(self._store)

    def note_sent(self, sent: Iterable[tuple[int, str, str]]) -> None:
        """Remembers, beyond this process, which worker may answer which row, and in which shard it went there."""
        with self._writing():
            ledger_results.note_sent(self._store, sent)

    def sent_rows(self) -> list[tuple[int, str, str]]:
        """(row, worker, shard) of the open rows that were noted as sent; a row that went to several comes again."""
        return ledger_results.sent_rows(self._store)

    def hear(self, report: str) -> bool:
        """False for the id of a report heard before, by an earlier coordinator too: a new broker is told again."""
        with self._writing():
            return ledger_results.hear_report(self._store, report)

    def crashed(self, rows: Sequence[int], alone: bool) -> list[int]:
        """Counts an engine's death against these rows; how often each has now been the only one inside."""
        with self._writing():
            return ledger_results.count_crash(self._store, rows, alone)

    def vanished(self, rows: Sequence[int]) -> dict[int, int]:
        """Counts a worker's silence against the rows in its batch; how many each has now had."""
        with self._writing():
            return ledger_results.count_vanished(self._store, rows)

    def quarantine(self, row: int, reason: str) -> None:
        """Ends an open row that kills engines, and the requests that need it; a row that has ended is left alone."""
        with self._writing():
            if ledger_results.fail_row(self._store, row, RowState.QUARANTINED, reason):
                touch_rows(self._store, [row])
                settle(self._store)

    # -- reduce ----------------------------------------------------------------------------------

    def ready_to_reduce(self, job: int) -> list[int]:
        """The job's open REDUCE requests whose latest level is done and has several parts."""
        with self._writing():
            touch_to_reduce(self._store, first_request(job), first_request(job + 1))
            return settle(self._store)

    def part_texts(self, request: int) -> list[str]:
        """The texts of the request's latest level, in order."""
        return ledger_results.latest_texts(self._store, request)

    def part_settings(self, request: int) -> tuple[Sampling, int]:
        """(sampling, max_tokens) that the request's parts were given."""
        sampling, max_tokens = ledger_results.part_settings(self._store, request)
        return self.sampling(sampling), max_tokens

    def add_parts(self, request: int, rows: Sequence[NewRow]) -> list[OpenRow]:
        """Gives the request its next level; its rows that are open and not given out yet. When there are none the
        request has ended, or `ready_to_reduce` names it again."""
        job = job_of(request)
        with self._writing():
            level = self._store.number("SELECT level FROM request WHERE id = ?", (request,)) + 1
            opened = self._requests.add_level(job, request, level, rows)
        return self._hand_out(job, opened)

    # -- reading ---------------------------------------------------------------------------------

    def answers(self, job: int, *, vectors: bool = False) -> Iterator[Answer]:
        """The job's requests in input order as they are at this moment, read beside any writing; `vectors` brings
        those of texts that were embedded."""
        store = Store(self._state.ledger, write=False)
        try:
            yield from stream_answers(store, job, vectors=vectors)
        finally:
            store.close()

    def is_openai(self, job: int) -> bool:
        """Whether the job's input was OpenAI batch lines."""
        return ledger_jobs.is_openai(self._store, job)

    def validate(self) -> None:
        """AssertionError with the story when an invariant is broken or a total is wrong; reads every table."""
        check_ledger(self._store)

    # -- inside ----------------------------------------------------------------------------------

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            with self._store.transaction():
                yield
        except BaseException:
            self._rows.samplings.forget()
            self._requests.forget()
            raise

    def _hand_out(self, job: int, rows: list[OpenRow]) -> list[OpenRow]:
        handed = self._handed.setdefault(job, HandedOut())
        fresh = handed.fresh(rows)
        handed.mark(fresh)
        return fresh
