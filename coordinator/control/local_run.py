"""`fleet run`: broker, worker and controller on this machine, from the first row to the last or to a stop."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace

from coordinator.broker.broker import Broker
from coordinator.broker.dispatch import Dispatch
from coordinator.control.caretaker import Caretaker
from coordinator.control.controller import Controller
from coordinator.control.interrupts import Interrupts
from coordinator.control.job_run import JobRun
from coordinator.control.local_worker import LocalWorker
from coordinator.control.member import Member
from coordinator.control.processes import Processes
from coordinator.control.run_view import RunView
from coordinator.control.turn import IDLE_S, Every, Turn
from coordinator.control.watch import Watch
from coordinator.ledger.ledger import Ledger
from coordinator.records import Counts
from fleet.config import StateDir
from fleet.errors import BrokerError, InterruptedRunError
from fleet.messages import Figures, Stop

log = logging.getLogger(__name__)

#: How often the progress bar hears of us, seconds.
TICK_S = 0.5
#: What is shown while the broker does not answer.
NO_BROKER = "waiting for the broker"
#: What is shown while the batch is finished.
STOPPING = "finishing the batch (Ctrl-C again ends at once)"
#: How often we look whether `fleet cancel` was said, seconds.
CANCEL_S = 1.0
#: Longest wait for a worker's last counters, seconds; it tells them within about one.
LAST_S = 3.0


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
    figures: Figures = field(default_factory=Figures)
    #: rows computed here and now; the others were known
    computed: int = 0
    crashes: int = 0
    seconds: float = 0.0
    #: what a plan gave for it before, without model loading; None without one
    planned_s: float | None = None
    #: cap of the last engine, 0 when none was loaded
    cap: int = 0
    #: why the model runs at batch 1, empty when it batches
    single: str = ""
    cancelled: bool = False


class LocalRun:
    """One job, on this machine."""

    def __init__(self, run: JobRun, ledger: Ledger, state: StateDir, processes: Processes, options: RunOptions):
        self._run = run
        self._ledger = ledger
        self._interrupts = Interrupts()
        self._member = Member(id=f"local-{secrets.token_hex(4)}", local=True)
        self._broker = Broker(state, processes)
        self._options = options
        self._state = state
        self._processes = processes

    def go(self, on_tick: Callable[[RunView], None]) -> RunResult:
        """Works until every request is terminal.

        Raises InterruptedRunError after a Ctrl-C: what was finished is recorded.
        """
        began = time.monotonic()
        if self._run.done():
            return RunResult(counts=self._run.counts())
        with ExitStack() as stack:
            stack.enter_context(self._interrupts.caught())
            controller, worker = self._start(stack)
            cancelled = self._loop(controller, worker, on_tick)
            if cancelled or self._interrupts.count:
                self._wind_down(controller, worker, on_tick)
            controller.assignments.validate()
            result = self._result(controller, time.monotonic() - began, cancelled=cancelled)
        if self._interrupts.count:
            raise InterruptedRunError(how_to_go_on(self._run.job.id, result.counts))
        return result

    def _start(self, stack: ExitStack) -> tuple[Controller, LocalWorker]:
        """Starts broker and worker; `stack` ends them."""
        stack.callback(self._run.close)
        stack.callback(self._broker.stop)
        self._broker.start()
        worker = LocalWorker(
            self._state,
            self._processes,
            self._broker,
            self._member.id,
            cap=self._options.cap,
            memory_bytes=self._options.memory_bytes,
        )
        stack.callback(worker.stop)
        worker.start()
        controller = Controller(ledger=self._ledger, dispatch=Dispatch(self._broker.url))
        controller.add_member(self._member)
        controller.add_job(self._run)
        if self._run.read:
            self._run.take_up()
        return controller, worker

    def _loop(self, controller: Controller, worker: LocalWorker, on_tick: Callable[[RunView], None]) -> bool:
        """Until done or stopped; True when the job was cancelled. Raises what the job failed with."""
        run = self._run
        watch = Watch(controller, self._broker, Caretaker(controller, worker, self._member))
        turn = Turn(controller, watch)
        tick, ask = Every(TICK_S), Every(CANCEL_S)
        while not self._interrupts.count:
            busy = run.take_in()
            busy = turn.once() or busy
            if run.error is not None:
                raise run.error
            if tick.due():
                on_tick(controller.view(run, state=NO_BROKER if turn.away else _state_of(self._member)))
            if ask.due() and self._ledger.cancel_requested(run.job.id):
                return True
            if run.done():
                on_tick(controller.view(run, state="done"))
                with suppress(BrokerError):  # only counters are missing then
                    self._hear_last(watch, worker)
                return False
            if not busy:
                time.sleep(IDLE_S)
        return False

    def _hear_last(self, watch: Watch, worker: LocalWorker) -> None:
        """Waits a little for the beat of a worker that holds nothing any more: its counters are then complete."""
        deadline = time.monotonic() + LAST_S
        while time.monotonic() < deadline and worker.alive():
            watch.read_leases()
            beat = self._member.beat
            # a short run can end before the beat that says it began
            total = self._member.throughput.total
            told = total.steps + total.prompt_tokens > 0 or not self._member.rows_done
            if told and beat is not None and not beat.shards and not beat.running:
                return
            time.sleep(IDLE_S)

    def _wind_down(self, controller: Controller, worker: LocalWorker, on_tick: Callable[[RunView], None]) -> None:
        """Lets the rows in the batch finish and records them; a second Ctrl-C ends that too."""
        tick = Every(TICK_S)
        try:
            controller.dispatch.control(self._member.id, Stop())
            while worker.alive() and self._interrupts.count < 2:
                if tick.due():
                    hear(controller, self._member)
                    view = controller.view(self._run, state=STOPPING)
                    on_tick(stopping(view, len(self._member.running)))
                if not controller.absorb():
                    time.sleep(IDLE_S)
            if self._interrupts.count < 2:
                while controller.absorb():
                    pass
        except BrokerError as error:
            log.warning("broker: %s", error)

    def _result(self, controller: Controller, seconds: float, *, cancelled: bool) -> RunResult:
        engine = self._member.engine
        return RunResult(
            counts=self._run.counts(),
            figures=self._member.throughput.total,
            computed=self._run.computed,
            crashes=controller.faults.crashes,
            seconds=seconds,
            cap=engine.cap if engine else 0,
            single=engine.single if engine else "",
            cancelled=cancelled,
        )


def hear(controller: Controller, member: Member) -> None:
    """Takes a worker's last beat, and nothing else of what a `Watch` does: nobody is replaced any more."""
    lease = controller.dispatch.sights([member.id])[member.id].lease
    if lease is not None:
        member.heard(lease.beat, controller.clock())


def stopping(view: RunView, batch: int) -> RunView:
    """The view of a run that only finishes the `batch` rows it decodes: what the whole job would still take is not
    told."""
    return replace(view, left_s=0.0, batch=batch)


def how_to_go_on(job: int, counts: Counts) -> str:
    """What a person is told after Ctrl-C."""
    told = f"interrupted with {counts.done} of {counts.requests} requests done"
    if not counts.done:
        return f"{told}; the same command begins again"
    recorded = "all of them recorded; the same command goes on from there"
    return f"{told}, {recorded}, `fleet results {job}` writes what is there"


def _state_of(member: Member) -> str:
    return "starting" if member.beat is None else member.beat.state.value
