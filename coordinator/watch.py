"""Liveness: leases, the broker, the worker process, shards that vanished. All of it ends in `give_back`."""

from __future__ import annotations

import logging
import time

from coordinator.broker import Broker
from coordinator.controller import Controller
from coordinator.local_worker import LocalWorker
from coordinator.member import Member
from fleet.config import BEAT_S, LEASE_TTL_S
from fleet.errors import BrokerError, NoWorkersError
from fleet.messages import Crashed

log = logging.getLogger(__name__)

#: A dispatched shard that neither its queue nor a beat has shown for this long is lost, seconds. Two beats and a
#: bit: its results may still be in the stream, and a wiped broker has no beat at first.
MISSING_S = 2 * BEAT_S + 1
#: Longest wait for a worker's last counters, seconds; it tells them within about one.
LAST_S = 3.0
POLL_S = 0.05
#: Worker processes started again, without a row recorded between, before we say that it is no use.
RESTARTS = 8
#: Our own broker is replaced when it has not answered for this long, seconds: more than one slow reply.
SILENT_S = 20.0


class Watch:
    """Looks after one local worker and our broker, a few times a second."""

    def __init__(self, controller: Controller, broker: Broker, worker: LocalWorker, member: Member) -> None:
        self._controller = controller
        self._broker = broker
        self._worker = worker
        self._member = member
        self._next_s = 0.0
        #: worker processes started again since a row was last recorded, and the rows recorded by then
        self._restarts = 0
        self._computed = 0
        #: since when the broker has not answered, None while it does
        self._silent_since: float | None = None
        #: when the worker process was started or last heard of
        self._heard_s = controller.clock()

    def look(self) -> None:
        """Repairs what is broken. Raises NoWorkersError when the worker cannot be kept alive."""
        if not self._broker.alive():
            log.warning("the broker is gone: starting another")
            self._broker.restart()
        if not self._worker.alive():
            self._replace_worker("its process ended")
        now = self._controller.clock()
        if now < self._next_s:
            return
        self._next_s = now + BEAT_S / 3
        self._read_lease(now)
        self._silent_since = None

    def hear_last(self) -> None:
        """Waits a little for the beat of a worker that holds nothing any more: its counters are then complete."""
        deadline = time.monotonic() + LAST_S
        while time.monotonic() < deadline and self._worker.alive():
            self._read_lease(self._controller.clock())
            beat = self._member.beat
            # a short run can end before the beat that says it began
            told = self._member.throughput.total.steps > 0 or not self._controller.computed
            if told and beat is not None and not beat.shards and not beat.running:
                return
            time.sleep(POLL_S)

    def _read_lease(self, now: float) -> None:
        try:
            # In this order: an agent shows a shard in its beat before it takes it off the queue.
            queued = self._controller.dispatch.queued(self._member.id)
            lease = self._controller.dispatch.lease(self._member.id)
        except BrokerError:
            self._heard_s = self._controller.clock()  # it is the broker that is silent
            raise
        if lease is not None:
            self._heard_s = now
            self._member.heard(lease.beat, now)
            self._find_missing(queued | set(lease.beat.shards), now)
        elif now - self._heard_s > 2 * LEASE_TTL_S + BEAT_S:
            # alive as a process but silent for long: asleep, or stuck; no row is to blame for that
            self._member.beat = None
            self._replace_worker("it gives no sign of life")

    def _find_missing(self, seen: set[str], now: float) -> None:
        for flight in self._controller.assignments.of(self._member.id):
            if flight.id in seen:
                flight.missing_since = None
            elif flight.missing_since is None:
                flight.missing_since = now
            elif now - flight.missing_since > MISSING_S:
                log.warning("shard %s is lost: its rows go back", flight.id)
                self._controller.give_back(self._controller.assignments.release_shard(flight.id))

    def _count_restart(self, why: str) -> None:
        if self._controller.computed > self._computed:
            self._restarts, self._computed = 0, self._controller.computed
        self._restarts += 1
        if self._restarts > RESTARTS:
            raise NoWorkersError(f"the worker ended {self._restarts} times, the last because {why}: see worker.log")
        log.warning("worker %s is replaced: %s", self._member.id, why)

    def broker_is_silent(self) -> None:
        """To be told when the broker did not answer: our own is replaced when that goes on."""
        now = self._controller.clock()
        if self._silent_since is None:
            self._silent_since = now
        elif now - self._silent_since > SILENT_S and not self._broker.foreign:
            log.warning("the broker gives no answer: starting another")
            self._broker.restart()
            self._silent_since = None

    def _replace_worker(self, why: str) -> None:
        self._worker.kill()
        self._controller.absorb()
        self._count_restart(why)
        running = tuple(row for row, _ in self._member.beat.running) if self._member.beat else ()
        if running:
            # A prompt that takes the whole process along must not do so for ever.
            cap = self._member.beat.engine.cap if self._member.beat and self._member.beat.engine else 0
            crash = Crashed(rows=running, latest=(), reason=why, cap=cap)
            self._controller.faults.crashed(self._member, crash)
        self._controller.give_back(self._controller.assignments.release_worker(self._member.id))
        self._controller.dispatch.purge(self._member.id)
        self._member.beat = None
        self._worker.start()
        self._heard_s = self._controller.clock()
