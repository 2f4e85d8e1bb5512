"""The jobs of a fleet from order to output: queued, read, worked on, written, over. The controller does the work."""

from __future__ import annotations

import logging
import secrets
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum

from coordinator.control import background
from coordinator.control.controller import Controller
from coordinator.control.front_desk import Order
from coordinator.control.job_run import JobRun
from coordinator.control.turn import Every
from coordinator.intake.feed import Feed
from coordinator.intake.intake import Intake
from coordinator.intake.preparation import Prepared, prepare, spec_of
from coordinator.ledger.ledger import Ledger
from coordinator.outputs.preflight import check_output, check_space
from coordinator.outputs.results import ResultCounts, write_results
from coordinator.records import JobRecord, JobSpec
from fleet.config import StateDir
from fleet.errors import BrokerError, FleetError, UsageError
from fleet.job import JobState

log = logging.getLogger(__name__)

#: Jobs whose input is read at once, and jobs that are open at once: the others wait in the ledger.
READING = 2
OPEN = 4
#: Ended jobs that are still shown.
SHOWN = 20
#: How often we look whether somebody cancelled a job in the ledger, seconds.
CANCEL_S = 1.0


class Stage(StrEnum):
    """Where a job is on its way."""

    QUEUED = "queued"
    #: its model is looked for, then its input is read
    READING = "reading"
    RUNNING = "running"
    WRITING = "writing"
    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"


OVER = frozenset({Stage.FINISHED, Stage.FAILED, Stage.CANCELLED})


@dataclass(slots=True)
class Submitted:
    """A job of the fleet. Owned by the controller's thread."""

    record: JobRecord
    stage: Stage = Stage.QUEUED
    prepared: Future[Prepared] | None = None
    #: until its input is read
    intake: Intake | None = None
    run: JobRun | None = None
    written: Future[ResultCounts] | None = None
    #: what it is once it is written
    then: JobState = JobState.FINISHED
    #: why it failed
    error: str = ""
    #: it goes before all of lower priority, which it does once it has rows
    first: bool = False
    #: rows sent again after a fault, once it is over
    retried: int = 0

    @property
    def reads(self) -> bool:
        """Whether its input is being read."""
        return self.stage is Stage.READING or (self.run is not None and not self.run.read)


class JobOffice:
    """Every job that a fleet has not ended, and those it ended lately."""

    def __init__(self, controller: Controller, ledger: Ledger, state: StateDir) -> None:
        self._controller = controller
        self._ledger = ledger
        self._state = state
        self._jobs: dict[int, Submitted] = {}
        self._over: deque[Submitted] = deque(maxlen=SHOWN)
        self._ask = Every(CANCEL_S)

    @property
    def jobs(self) -> Sequence[Submitted]:
        """Those that were over lately first, then the others, oldest first."""
        return [*self._over, *self._jobs.values()]

    # -- asked for -----------------------------------------------------------------------------------

    def take_up(self) -> None:
        """Queues what another coordinator of this folder did not end."""
        for status in self._ledger.jobs():
            record = status.record
            if record.submitted and record.state is JobState.RUNNING:
                self._jobs[record.id] = Submitted(record=record)
                self._controller.tell(f"job {record.id} goes on")

    def submit(self, order: Order) -> int:
        """Queues a job, or takes an equal one up again; its id. FleetError when it can never run."""
        spec = spec_of(order)
        for job in self._jobs.values():
            if replace(job.record.spec, model_hash="") == spec and not order.fresh:
                return job.record.id
        check_output(order.output, order.inputs)
        check_space([self._state.root], order.inputs)
        salt = secrets.token_hex(8) if order.fresh else ""
        record, known = self._ledger.begin_job(spec, salt, priority=order.priority, submitted=True)
        self._over = deque((job for job in self._over if job.record.id != record.id), maxlen=SHOWN)
        self._jobs[record.id] = Submitted(record=record)
        self._controller.tell(f"job {record.id} is {'taken up again' if known else 'queued'}: {_words(spec)}")
        return record.id

    def cancel(self, job: int) -> None:
        """Stops working on a job and writes what it has; UsageError when there is nothing to stop."""
        found = self._jobs.get(job)
        if found is None:
            record = self._ledger.job(job).record
            if record.state is not JobState.RUNNING:
                raise UsageError(f"job {job} is {record.state.value}, there is nothing to cancel")
            self._ledger.end_job(job, JobState.CANCELLED)
        elif found.stage is Stage.WRITING:
            raise UsageError(f"job {job} is done, there is nothing to cancel")
        else:
            self._stop(found)

    def _stop(self, job: Submitted) -> None:
        self._controller.tell(f"job {job.record.id} is cancelled")
        job.then = JobState.CANCELLED
        # At once: another coordinator that comes while this one writes shall not take it up.
        self._ledger.end_job(job.record.id, JobState.CANCELLED)
        if job.run is None:
            self._end(job, Stage.CANCELLED)
        else:
            self._controller.drop_job(job.record.id)
            self._write(job)

    # -- turn ----------------------------------------------------------------------------------------

    def turn(self) -> bool:
        """Moves each job on as far as it goes now; False when nothing moved."""
        moved = False
        for job in list(self._jobs.values()):
            try:
                moved = self._step(job) or moved
            except FleetError as error:
                self._fail(job, error)
            except Exception as error:  # of its intake, whatever that met: the other jobs go on
                log.exception("job %d ended", job.record.id)
                self._fail(job, FleetError(f"it met a bug of ours ({type(error).__name__}): see coordinator.log"))
        if self._ask.due():
            for job in [job for job in self._jobs.values() if job.stage is not Stage.WRITING]:
                if self._ledger.cancel_requested(job.record.id):
                    self._stop(job)
        return self._begin_next() or moved

    def _step(self, job: Submitted) -> bool:
        if job.stage is Stage.READING and job.prepared is not None and job.prepared.done():
            self._open(job, job.prepared.result())
            return True
        if job.stage is Stage.RUNNING and job.run is not None:
            if job.run.error is not None:
                raise job.run.error
            if job.run.take_in():
                self._make_way(job, job.run)
                return True
            if job.run.read:
                self._warn(job)
            if job.run.done():
                self._controller.drop_job(job.record.id)  # a document that failed leaves rows behind
                self._write(job)
                return True
        if job.stage is Stage.WRITING and job.written is not None and job.written.done():
            self._finish(job, job.written.result())
            return True
        return False

    def _warn(self, job: Submitted) -> None:
        """Once, what was ignored in its input."""
        for warning in job.intake.warnings if job.intake else ():
            self._controller.tell(f"job {job.record.id}: {warning}")
        job.intake = None

    def _make_way(self, job: Submitted, run: JobRun) -> None:
        """Once, when it has rows to send."""
        if not job.first and len(run.backlog):
            job.first = True
            with suppress(BrokerError):  # what is queued there goes first then
                self._controller.make_way(run)

    def _begin_next(self) -> bool:
        waiting = [job for job in self._jobs.values() if job.stage is Stage.QUEUED]
        if not waiting or sum(job.reads for job in self._jobs.values()) >= READING:
            return False
        first = min(waiting, key=lambda job: (-job.record.priority, job.record.id))
        before = [job for job in self._jobs.values() if job.stage is not Stage.QUEUED]
        if sum(job.record.priority >= first.record.priority for job in before) >= OPEN:
            return False
        first.stage = Stage.READING
        first.prepared = background.begin("prepare", lambda: prepare(first.record, self._state))
        return True

    def _open(self, job: Submitted, prepared: Prepared) -> None:
        """Its input is read, unless the ledger has this very input already; then the controller works on it."""
        before, number = job.record, job.record.id
        self._ledger.set_model(number, prepared.model_hash)
        job.record = self._ledger.job(number).record
        feed = None
        known = before.intake_complete and before.spec.model_hash == prepared.model_hash
        if not (known and prepared.signature == before.signature != ""):
            self._ledger.reset_intake(number)
            feed = Feed(prepared.intake.chunks())
            job.intake = prepared.intake
        job.run = JobRun(
            job.record,
            self._ledger,
            prepared.intake.reduce,
            feed=feed,
            signature=prepared.signature,
            claim=self._controller.claim,
        )
        self._controller.add_job(job.run)
        if feed is None:
            job.run.take_up()
        self._make_way(job, job.run)
        job.stage = Stage.RUNNING
        self._controller.tell(f"job {number} has begun")

    # -- ends ----------------------------------------------------------------------------------------

    def _write(self, job: Submitted) -> None:
        """Begins to write what the job has."""
        job.stage = Stage.WRITING
        job.retried = job.run.retried if job.run else 0
        job.run = None
        openai = self._ledger.is_openai(job.record.id)
        job.written = background.begin("write", lambda: _written(self._state, job.record, openai=openai))

    def _finish(self, job: Submitted, counts: ResultCounts) -> None:
        failed = f", {counts.failed} failed" if counts.failed else ""
        if job.then is JobState.FINISHED:
            self._controller.tell(f"job {job.record.id} is done: {counts.done} answered{failed}")
        self._end(job, Stage(job.then.value))

    def _fail(self, job: Submitted, error: FleetError) -> None:
        if job.record.id in self._controller.runs:
            self._controller.drop_job(job.record.id, error)
        told = job.record.told(str(error))
        job.error = told.encode("utf-8", "backslashreplace").decode()  # it may quote the name of a file
        self._controller.tell(f"job {job.record.id} failed: {job.error}")
        self._end(job, Stage.FAILED)

    def _end(self, job: Submitted, stage: Stage) -> None:
        job.stage = stage
        self._ledger.end_job(job.record.id, JobState(stage.value), job.error)
        del self._jobs[job.record.id]
        self._over.append(job)


def _written(state: StateDir, job: JobRecord, *, openai: bool) -> ResultCounts:
    with Ledger.read(state) as ledger:
        return write_results(ledger, job, openai=openai, output=job.spec.output)


def _words(spec: JobSpec) -> str:
    return f"{spec.task.value} with {spec.model}"
