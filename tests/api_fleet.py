"""A coordinator without workers for the API's tests: the real ledger, intake and server, and answers made up."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Self

from coordinator.api.app import build_app
from coordinator.api.server import ApiServer
from coordinator.broker.dispatch import QueueLine
from coordinator.control.front_desk import FrontDesk, Order
from coordinator.intake.intake import Intake
from coordinator.joining.accounts import Accounts
from coordinator.joining.certificate import Certificate
from coordinator.ledger.ledger import Ledger
from coordinator.outputs.results import write_results
from coordinator.records import JobRecord, JobSpec, OpenRow
from coordinator.screens.snapshot import FleetSnapshot, JobLine, MacLine, MacState
from fleet import token
from fleet.address import Address
from fleet.config import StateDir
from fleet.errors import UsageError
from fleet.job import Finish, JobState, canonical
from fleet.messages import RowResult
from fleet.token import Token


class MadeUp:
    """A `Service` that takes jobs in for real and answers their rows itself; used by one thread."""

    def __init__(self, state: StateDir, model: Path, certificate: Certificate) -> None:
        self.state = state
        self.model = model
        self.ledger = Ledger.open(state)
        self.orders: dict[int, Order] = {}
        self.lines: dict[int, JobLine] = {}
        self.kicked: list[str] = []
        self.drained = False
        #: the state of its one Mac
        self.mac = MacState.WORKING
        #: rows are answered while this is set
        self.working = threading.Event()
        self.working.set()
        self.key = Token(fingerprint=certificate.fingerprint, secret="ab" * 16, key="cd" * 16)
        self._todo: list[tuple[JobRecord, Intake]] = []

    def submit(self, order: Order) -> int:
        options = order.options
        intake = Intake(list(order.inputs), options, self.model, "ab")
        spec = JobSpec(
            task=options.task,
            model=options.model,
            model_hash="ab",
            inputs=order.inputs,
            output=order.output,
            options=canonical(asdict(options)).decode(),
        )
        job, _ = self.ledger.begin_job(spec, priority=order.priority, submitted=True)
        self.orders[job.id] = order
        self._line(job, "queued")
        self._todo.append((job, intake))
        return job.id

    def cancel(self, job: int) -> None:
        if job not in self.orders:
            raise UsageError(f"there is no job {job}")
        record = self.ledger.job(job).record
        if record.state is not JobState.RUNNING:
            raise UsageError(f"job {job} is {record.state.value}, there is nothing to cancel")
        self._todo = [(other, intake) for other, intake in self._todo if other.id != job]
        self._end(record, JobState.CANCELLED, "cancelled", openai=self.ledger.is_openai(job))

    def snapshot(self) -> FleetSnapshot:
        mac = MacLine(id="m1", name="mini", state=self.mac, model="org/held")
        return FleetSnapshot(version="0", coordinator="test", jobs=tuple(self.lines.values()), macs=(mac,))

    def queues(self) -> list[QueueLine]:
        return [QueueLine(queue="m1", waiting=2, taking=0, registries={"wip": 1, "failed": 0})]

    def kick(self, name: str) -> str:
        if name != "mini":
            raise UsageError(f"there is no worker {name}")
        self.kicked.append(name)
        return name

    def drain(self) -> None:
        self.drained = True

    def token(self, *, rotate: bool) -> str:
        if rotate:
            self.key = Token(fingerprint=self.key.fingerprint, secret=token.new_secret(), key=token.new_secret())
        return self.key.format(Address("127.0.0.1"))

    def turn(self) -> bool:
        """Takes one job through; False when there is none, or work is held up."""
        if not self._todo or not self.working.is_set():
            return False
        job, intake = self._todo.pop(0)
        self._line(job, "running")
        for chunk in intake.chunks():
            opened = self.ledger.add_requests(job.id, chunk)
            self.ledger.commit("m1", [_answer(row) for row in opened])
        self.ledger.finish_intake(job.id, intake.signature())
        self._end(job, JobState.FINISHED, "finished", openai=intake.is_openai)
        return True

    def fail(self, job: int, why: str) -> None:
        """Ends a job that cannot be run."""
        self._line(self.ledger.job(job).record, "failed", why)

    def _end(self, job: JobRecord, state: JobState, word: str, *, openai: bool) -> None:
        write_results(self.ledger, job, openai=openai, output=job.spec.output)
        self.ledger.end_job(job.id, state)
        self._line(job, word)

    def _line(self, job: JobRecord, state: str, error: str = "") -> None:
        spec = job.spec
        priority = self.orders[job.id].priority
        self.lines[job.id] = JobLine(
            id=job.id, task=spec.task.value, model=spec.model, state=state, error=error, priority=priority
        )


def _answer(row: OpenRow) -> RowResult:
    return RowResult(id=row.id, text=f"row {row.id}", finish=Finish.STOP, input_tokens=row.length, output_tokens=2)


class ApiFleet:
    """The API over a made-up service, in threads of this process; a context."""

    def __init__(self, folder: Path, model: Path, *, tls: bool = False) -> None:
        self.state = StateDir(folder / "coordinator")
        self.state.make()
        self.certificate = Certificate.of(self.state)
        self.accounts = Accounts(self.state)
        self.desk = FrontDesk()
        self.model = model
        self._tls = tls
        self._ended = threading.Event()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="controller", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(20)
        app = build_app(self.desk, self.state, self.service.key.key, self.accounts.get)
        self.server = ApiServer(app, port=0, certificate=self.certificate if self._tls else None)
        self.server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.stop()
        self._ended.set()
        self._thread.join(20)

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self.server.port}"

    @property
    def key(self) -> str:
        return self.service.key.key

    def ask(self, work: Callable[[MadeUp], object]) -> None:
        """Does something in the service's thread."""
        self.desk.ask(lambda _: work(self.service))

    def _loop(self) -> None:
        self.service = MadeUp(self.state, self.model, self.certificate)
        self._ready.set()
        with self.service.ledger:
            while not self._ended.is_set():
                if not self.desk.serve(self.service) and not self.service.turn():
                    time.sleep(0.005)
