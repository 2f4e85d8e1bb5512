"""Keeps this machine's worker process alive: another one starts when it ends or gives no sign of life."""

from __future__ import annotations

import logging

from coordinator.control.controller import Controller
from coordinator.control.local_worker import LocalWorker
from coordinator.control.member import Member, Presence
from fleet.errors import NoWorkersError
from fleet.messages import Crashed

log = logging.getLogger(__name__)

#: Worker processes started again, without a row recorded between, before we say that it is no use.
RESTARTS = 8


class Caretaker:
    """Looks after one worker that is a process of ours."""

    def __init__(self, controller: Controller, worker: LocalWorker, member: Member) -> None:
        self._controller = controller
        self._worker = worker
        self._member = member
        #: worker processes started again since a row was last recorded, and the rows recorded by then
        self._restarts = 0
        self._rows_done = 0

    def look(self) -> None:
        """Starts another process when this one ended. Raises NoWorkersError when that has been of no use."""
        if not self._worker.alive():
            self.replace("its process ended", blame=True)

    def replace(self, why: str, *, blame: bool) -> None:
        """Ends the process and starts another; with `blame` what was in the batch is suspect: a prompt that takes
        the whole process along must not do so for ever."""
        member = self._member
        if not blame:
            member.beat = None  # at once: should the broker fail us now, the next look finds a process that ended
        self._worker.kill()
        self._controller.absorb()
        self._count_restart(why)
        if blame and member.running:
            cap = member.engine.cap if member.engine else 0
            crash = Crashed(rows=member.running, latest=(), reason=why, cap=cap)
            self._controller.blame(self._controller.faults.crashed, member, crash)
        self._controller.lose(member)
        self._worker.start()
        member.presence = Presence.EXPECTED
        member.heard_s = self._controller.clock()

    def _count_restart(self, why: str) -> None:
        if self._member.rows_done > self._rows_done:
            self._restarts, self._rows_done = 0, self._member.rows_done
        self._restarts += 1
        if self._restarts > RESTARTS:
            raise NoWorkersError(f"the worker ended {self._restarts} times, the last because {why}: see worker.log")
        log.warning("worker %s is replaced: %s", self._member.id, why)
