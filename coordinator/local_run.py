"""`fleet run`: broker, worker and controller on this machine, from the first row to the last or to a stop."""

from __future__ import annotations

import logging
import secrets
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from types import FrameType

from coordinator.broker import Broker
from coordinator.controller import Controller, Reducer, RunView
from coordinator.dispatch import Dispatch
from coordinator.feed import Feed
from coordinator.ledger import Ledger
from coordinator.local_worker import LocalWorker
from coordinator.member import Member
from coordinator.processes import Processes
from coordinator.records import Counts, JobRecord
from coordinator.watch import Watch
from fleet.config import StateDir
from fleet.errors import BrokerError, InterruptedRunError
from fleet.messages import Figures, Stop, WorkerState

log = logging.getLogger(__name__)

#: Pause of the loop when nothing happened, seconds.
IDLE_S = 0.05
#: How often the progress bar hears of us, seconds.
TICK_S = 0.5
#: What is shown while the broker does not answer.
NO_BROKER = "waiting for the broker"
#: What is shown while the batch is finished.
STOPPING = "finishing the batch (Ctrl-C again ends at once)"
#: How often we look whether `fleet cancel` was said, seconds.
CANCEL_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """How to run, nothing of which changes an answer."""

    #: rows decoding together at most, 0 for the engine's own choice
    cap: int = 0
    #: bytes the worker may use, 0 for its own choice
    memory_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """What a run did."""

    counts: Counts
    #: counters of all engines of this run
    figures: Figures
    #: rows computed here and now; the others were known
    computed: int
    crashes: int
    seconds: float
    #: cap of the last engine, 0 when none was loaded
    cap: int
    #: why the model runs at batch 1, empty when it batches
    single: str
    cancelled: bool = False


class Interrupts:
    """Counts Ctrl-C (and SIGTERM): one asks for a gentle stop, a second for an immediate one."""

    def __init__(self) -> None:
        self.count = 0

    def _note(self, _signum: int, _frame: FrameType | None) -> None:
        self.count += 1

    @contextmanager
    def caught(self) -> Iterator[None]:
        """While inside, the signals only count."""
        previous = {number: signal.signal(number, self._note) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)


class LocalRun:
    """One job, on this machine."""

    def __init__(self, job: JobRecord, ledger: Ledger, state: StateDir, processes: Processes, options: RunOptions):
        self._job = job
        self._ledger = ledger
        self._state = state
        self._processes = processes
        self._options = options
        self._interrupts = Interrupts()

    def go(
        self,
        feed: Feed | None,
        signature: str,
        reduce: Reducer,
        on_tick: Callable[[RunView], None],
    ) -> RunResult:
        """Works until every request is terminal; `feed` is None when the ledger has the whole input already.

        Raises InterruptedRunError after a Ctrl-C: what was finished is recorded.
        """
        began = time.monotonic()
        if feed is None and not self._ledger.counts(self._job.id).open:
            return self._nothing_to_do()
        with ExitStack() as stack:
            stack.enter_context(self._interrupts.caught())
            if feed is not None:
                stack.callback(feed.close)
            broker = Broker(self._state, self._processes)
            stack.callback(broker.stop)
            broker.start()
            member = Member(id=f"local-{secrets.token_hex(4)}")
            worker = LocalWorker(
                self._state,
                self._processes,
                broker,
                member.id,
                cap=self._options.cap,
                memory_bytes=self._options.memory_bytes,
            )
            stack.callback(worker.stop)
            worker.start()
            controller = Controller(
                self._job, ledger=self._ledger, dispatch=Dispatch(broker.url), members=[member], reduce=reduce
            )
            watch = Watch(controller, broker, worker, member)
            cancelled = self._loop(controller, watch, feed, signature, on_tick)
            if cancelled or self._interrupts.count:
                self._wind_down(controller, member, worker, on_tick)
            controller.assignments.validate()
            engine = member.beat.engine if member.beat else None
            result = RunResult(
                counts=self._ledger.counts(self._job.id),
                figures=member.throughput.total,
                computed=controller.computed,
                crashes=controller.faults.crashes,
                seconds=time.monotonic() - began,
                cap=engine.cap if engine else 0,
                single=engine.single if engine else "",
                cancelled=cancelled,
            )
        if self._interrupts.count:
            raise InterruptedRunError(self._how_to_go_on(result.counts))
        return result

    def _loop(
        self,
        controller: Controller,
        watch: Watch,
        feed: Feed | None,
        signature: str,
        on_tick: Callable[[RunView], None],
    ) -> bool:
        """Until done or stopped; True when the job was cancelled."""
        if feed is None:
            controller.take_up()
        next_tick = next_cancel = 0.0
        away = False
        while not self._interrupts.count:
            busy = controller.take_in(feed, signature) if feed is not None else False
            try:
                watch.look()
                busy = controller.absorb() or busy
                busy = controller.send_work() or busy
                away = False
            except BrokerError as error:
                if not away:
                    log.warning("broker: %s", error)
                away = True
                watch.broker_is_silent()
            now = time.monotonic()
            ended = feed is None or feed.ended
            if now >= next_tick:
                on_tick(controller.view(intake_ended=ended, state=NO_BROKER if away else _state_of(controller)))
                next_tick = now + TICK_S
            if now >= next_cancel:
                next_cancel = now + CANCEL_S
                if self._ledger.cancel_requested(self._job.id):
                    return True
            if ended and not self._ledger.counts(self._job.id).open:
                on_tick(controller.view(intake_ended=True, state="done"))
                with suppress(BrokerError):  # only counters are missing then
                    watch.hear_last()
                return False
            if not busy:
                time.sleep(IDLE_S)
        return False

    def _wind_down(
        self, controller: Controller, member: Member, worker: LocalWorker, on_tick: Callable[[RunView], None]
    ) -> None:
        """Lets the rows in the batch finish and records them; a second Ctrl-C ends that too."""
        next_tick = 0.0
        try:
            controller.dispatch.control(member.id, Stop())
            while worker.alive() and self._interrupts.count < 2:
                if time.monotonic() >= next_tick:
                    next_tick = time.monotonic() + TICK_S
                    on_tick(controller.view(intake_ended=False, state=STOPPING))
                if not controller.absorb():
                    time.sleep(IDLE_S)
            if self._interrupts.count < 2:
                while controller.absorb():
                    pass
        except BrokerError as error:
            log.warning("broker: %s", error)

    def _nothing_to_do(self) -> RunResult:
        counts = self._ledger.counts(self._job.id)
        return RunResult(counts=counts, figures=Figures(), computed=0, crashes=0, seconds=0.0, cap=0, single="")

    def _how_to_go_on(self, counts: Counts) -> str:
        return (
            f"interrupted with {counts.done} of {counts.requests} requests done, all of them recorded; "
            f"the same command goes on from there, `fleet results {self._job.id}` writes what is there"
        )


def _state_of(controller: Controller) -> str:
    beats = [member.beat for member in controller.members.values()]
    if all(beat is None for beat in beats):
        return "starting"
    return next((beat.state.value for beat in beats if beat is not None), WorkerState.IDLE.value)
