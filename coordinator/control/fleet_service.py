"""What others may ask of a running fleet, see `front_desk.Service`; called in the controller's thread."""

from __future__ import annotations

import time
from collections.abc import Callable

from coordinator.broker.dispatch import QueueLine
from coordinator.control.controller import Controller
from coordinator.control.events import Events
from coordinator.control.fleet_lines import job_line, mac_lines
from coordinator.control.front_desk import Order
from coordinator.control.job_office import JobOffice
from coordinator.control.membership import Membership
from coordinator.control.premises import Premises
from coordinator.joining.discovery import Seen
from coordinator.ledger.ledger import Ledger
from coordinator.screens.snapshot import FleetSnapshot, MacLine, MacState
from fleet import __version__
from fleet.presence import JOINED


class FleetService:
    """Answers for one coordinator."""

    def __init__(
        self,
        premises: Premises,
        controller: Controller,
        ledger: Ledger,
        office: JobOffice,
        membership: Membership,
        events: Events,
        drain: Callable[[], None],
    ) -> None:
        """`drain` begins the end."""
        self._premises = premises
        self._controller = controller
        self._ledger = ledger
        self._office = office
        self._membership = membership
        self._events = events
        self._drain = drain
        self._started = time.time()

    def submit(self, order: Order) -> int:
        """Queues a job, or takes an equal one up again; its id."""
        return self._office.submit(order)

    def cancel(self, job: int) -> None:
        """Stops working on a job."""
        self._office.cancel(job)

    def queues(self) -> list[QueueLine]:
        """The broker's queues as RQ has them."""
        return self._controller.dispatch.queues()

    def kick(self, name: str) -> str:
        """Removes a worker; its name."""
        return self._membership.kick(name)

    def drain(self) -> None:
        """Lets every worker finish its batch, then ends the coordinator."""
        self._drain()

    def token(self, *, rotate: bool) -> str:
        """The join token."""
        if rotate:
            self._premises.users.rotate(self._premises.client)
            self._membership.kicked.clear()
            self._events.tell("the token was rotated: earlier ones invite nobody")
        return self._premises.token()

    def snapshot(self) -> FleetSnapshot:
        """The fleet now."""
        roster = self._controller.roster
        models = {job.record.spec.model_hash: job.record.spec.model for job in self._office.jobs}
        macs = mac_lines(roster, models, self._membership.kicked)
        return FleetSnapshot(
            version=__version__,
            coordinator=self._premises.options.name,
            addresses=tuple(map(str, self._premises.places())),
            started=self._started,
            now=time.time(),
            jobs=tuple(job_line(job, self._ledger.counts(job.record.id), roster) for job in self._office.jobs),
            macs=(*macs, *self._present({line.id for line in macs})),
            events=self._events.all(),
        )

    def _present(self, known: set[str]) -> list[MacLine]:
        """Macs on the network that are not in the fleet, and those that come back to a coordinator that began anew."""
        seen = self._premises.discovery.macs() if self._premises.discovery else ()
        return [self._present_line(mac) for mac in seen if mac.wid not in known]

    def _present_line(self, mac: Seen) -> MacLine:
        expected = mac.state == JOINED and mac.wid in self._controller.members
        missing = "not joined" if mac.wants(self._premises.certificate.fingerprint) else "wrong token"
        return MacLine(
            id=mac.wid,
            name=mac.name,
            state=MacState.JOINING if expected else MacState.PRESENT,
            note="" if expected else missing,
            chip=mac.chip,
            memory_bytes=mac.memory_bytes,
        )
