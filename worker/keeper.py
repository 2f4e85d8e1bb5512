"""Keeps one engine alive: starts it when rows need one, hears it, replaces it when it dies, stalls or must change."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from fleet.config import STALL_S
from fleet.messages import Message, Ready
from worker.desk import Desk
from worker.engine_process import Ended, EngineProcess
from worker.held import ModelRef

log = logging.getLogger(__name__)

#: How often the keeper looks up when the engine is silent, seconds.
LOOK_S = 0.5
#: Pause before an engine is started again, doubled with each failure, seconds.
BACKOFF_S = 0.25
MAX_BACKOFF_S = 8.0


class Keeper:
    """Runs on a thread of its own."""

    def __init__(
        self,
        desk: Desk,
        launch: Callable[[ModelRef, int], EngineProcess],
        *,
        stall_s: float = STALL_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._desk = desk
        self._launch = launch
        self._stall_s = stall_s
        self._clock = clock
        self._process: EngineProcess | None = None

    def run(self) -> None:
        """Until the desk closes."""
        while (needed := self._desk.await_model()) is not None:
            model, cap = needed
            failures = self._run_one(model, cap)
            if failures is not None:
                time.sleep(min(BACKOFF_S * 2**failures, MAX_BACKOFF_S))

    def kill(self) -> None:
        """Ends the engine at once, from any thread: one that was stopped (SIGSTOP) does not see its link close."""
        if self._process is not None:
            self._process.kill()

    def _run_one(self, model: ModelRef, cap: int) -> int | None:
        """One engine from start to end; the failures in a row, None when it ended by our wish."""
        try:
            process = self._process = self._launch(model, cap)
        except OSError as error:
            log.error("the engine cannot be started: %s", error)
            self._desk.engine_started(model, _discard)
            return self._desk.engine_gone(f"cannot be started: {error.strerror}", expected=False)
        log.info("engine %d started", process.pid)
        self._desk.engine_started(model, process.send)
        why = self._attend(process, model)
        if why is None:
            self._desk.engine_gone(process.close(), expected=True)
            log.info("engine %d let go", process.pid)
            return None
        reason = why or process.close()
        log.warning("engine %d ended: %s", process.pid, reason)
        failures = self._desk.engine_gone(reason, expected=False)
        process.close()
        return failures

    def _attend(self, process: EngineProcess, model: ModelRef) -> str | None:
        """Hears the engine until it ends (a reason, or empty for its own end), or until another is wanted (None)."""
        heard_s, ready = self._clock(), False
        while self._desk.wants(model):
            message = process.receive(LOOK_S)
            now = self._clock()
            if isinstance(message, Ended):
                if message.complaint:
                    process.kill()
                return message.complaint
            if message is not None:
                heard_s, ready = now, ready or isinstance(message, Ready)
                self._desk.heard(message)
            elif ready and now - heard_s > self._stall_s:  # loading may be long and says nothing
                process.kill()
                return f"no sign of life for {self._stall_s:.0f} s"
        return None


def _discard(_message: Message) -> None:
    """Takes messages for an engine that never was."""
