"""Liveness: the broker, leases, shards that vanished. All of it ends in rows given back."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from coordinator.broker.broker import Broker
from coordinator.broker.dispatch import Sight
from coordinator.control.caretaker import Caretaker
from coordinator.control.controller import Controller
from coordinator.control.member import Member, Presence
from fleet.config import BEAT_S, LEASE_TTL_S
from fleet.errors import BrokerError
from fleet.messages import Beat, SetCap, WorkerState

log = logging.getLogger(__name__)

#: A dispatched shard that neither its queue nor a beat has shown for this long is lost, seconds. Two beats and a
#: bit: its results may still be in the stream, and a wiped broker has no beat at first.
MISSING_S = 2 * BEAT_S + 1
#: A beat is late after this, seconds: the worker gets nothing new.
STALE_S = 1.5 * BEAT_S
#: Our own broker is replaced when it has not answered for this long, seconds: more than one slow reply.
SILENT_S = 20.0
#: We look a few times a second; after a pause of this we were asleep, and leases that are gone prove nothing, seconds.
ASLEEP_S = 2 * BEAT_S


class Watch:
    """Looks after the members and our broker, a few times a second."""

    def __init__(
        self,
        controller: Controller,
        broker: Broker,
        caretaker: Caretaker | None = None,
        *,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._controller = controller
        self._broker = broker
        self._caretaker = caretaker
        self._wall = wall
        self._next_s = 0.0
        #: since when the broker has not answered, None while it does
        self._silent_since: float | None = None
        #: the wall clock, which goes on while a machine sleeps, when the leases were last read
        self._looked_at = wall()

    def look(self) -> None:
        """Repairs what is broken. Raises BrokerError while the broker does not answer, NoWorkersError when the worker
        of this machine cannot be kept alive."""
        if not self._broker.alive():
            log.warning("the broker is gone: starting another")
            self._restart_broker()
        if self._caretaker is not None:
            self._caretaker.look()
        now = self._controller.clock()
        if now < self._next_s:
            return
        self._next_s = now + BEAT_S / 3
        self.read_leases()
        self._silent_since = None

    def forget_caretaker(self) -> None:
        """The worker of this machine is given up."""
        self._caretaker = None

    def read_leases(self) -> None:
        """Sees who is there and what they hold."""
        controller, slept = self._controller, self._wall() - self._looked_at > ASLEEP_S
        try:
            if controller.dispatch.epoch() is None:
                self._begin_anew()
            sights = controller.dispatch.sights(list(controller.members))
        except BrokerError:
            self._excuse_all()
            raise
        if slept:
            self._excuse_all()
        self._looked_at = self._wall()
        now = controller.clock()
        for worker, sight in sights.items():
            member = controller.members.get(worker)  # one lost may have ended a job, but no membership
            if member is not None:
                self._see(member, sight, now)

    def broker_is_silent(self) -> None:
        """To be told when the broker did not answer: our own is replaced when that goes on."""
        now = self._controller.clock()
        if self._silent_since is None:
            self._silent_since = now
        elif now - self._silent_since > SILENT_S and not self._broker.foreign:
            log.warning("the broker gives no answer: starting another")
            self._restart_broker()
            self._silent_since = None

    def _restart_broker(self) -> None:
        self._broker.restart()
        self._controller.tell("the broker was started anew")
        self._excuse_all()

    def _begin_anew(self) -> None:
        log.warning("the broker was emptied: it gets another epoch")
        self._broker.renew_epoch()
        self._controller.tell("the broker was emptied: what was in it is sent again")
        self._excuse_all()

    def _excuse_all(self) -> None:
        """Nobody could be heard: the time to be heard again begins now."""
        now = self._controller.clock()
        for member in self._controller.members.values():
            member.heard_s, member.epoch = now, ""

    # -- one member --------------------------------------------------------------------------------

    def _see(self, member: Member, sight: Sight, now: float) -> None:
        if sight.lease is not None:
            anew = self._hear(member, sight.lease.beat, LEASE_TTL_S - sight.lease.ttl_ms / 1000, now)
            self._find_missing(member, sight.queued | set(sight.lease.beat.shards), now, 0.0 if anew else MISSING_S)
            if member.resting and sight.queued:
                self._controller.recall(member, set(sight.queued))
            self._controller.call_off_unneeded(member)
        elif member.presence is not Presence.LOST and self._is_over(member, now):
            self._lose(member)

    def _hear(self, member: Member, beat: Beat, age_s: float, now: float) -> bool:
        """Takes a beat; True when it is the first of another process, which has nothing of the one before."""
        anew = member.beat is not None and member.beat.nonce != beat.nonce
        if anew:
            self._controller.vanished(member)
            self._controller.tell(f"{member.name} was started anew")
        elif member.presence is Presence.LOST or (member.presence is Presence.EXPECTED and not member.local):
            self._controller.tell(f"{member.name} is {'back' if member.presence is Presence.LOST else 'here'}")
        if member.cap and (anew or member.presence in (Presence.LOST, Presence.EXPECTED)):
            self._controller.dispatch.control(member.id, SetCap(rows=member.cap))  # it does not know of it
        member.presence = Presence.STALE if age_s > STALE_S else Presence.ALIVE
        member.epoch = self._broker.epoch
        member.heard(beat, now)
        return anew

    def _is_over(self, member: Member, now: float) -> bool:
        """Whether a lease that is not there means that its worker is gone: at once where this broker has had one, as
        the broker itself takes it away after LEASE_TTL_S. Our own process may be in the same sleep as we were."""
        if member.local:
            return now - member.heard_s > 2 * LEASE_TTL_S + BEAT_S
        return member.epoch == self._broker.epoch or now - member.heard_s > LEASE_TTL_S

    def _lose(self, member: Member) -> None:
        if member.local and self._caretaker is not None:
            self._caretaker.replace("it gives no sign of life", blame=False)
        elif member.beat is not None and member.beat.state is WorkerState.STOPPING:
            self._controller.lose(member)
            member.left()
            self._controller.tell(f"{member.name} has left")
        else:
            known = member.presence is not Presence.EXPECTED
            self._controller.vanished(member)
            self._controller.lose(member)
            member.forgotten = not known
            if known:
                self._controller.tell(f"{member.name} is lost: its rows run elsewhere")

    def _find_missing(self, member: Member, seen: frozenset[str] | set[str], now: float, patience_s: float) -> None:
        for flight in self._controller.assignments.of(member.id):
            if flight.id in seen:
                flight.missing_since = None
                continue
            flight.missing_since = now if flight.missing_since is None else flight.missing_since
            if now - flight.missing_since >= patience_s:
                log.warning("shard %s is lost: its rows go back", flight.id)
                self._controller.give_back(self._controller.assignments.release_shard(flight.id))
