"""`fleet up`: the controller for many Macs and many jobs, until somebody ends it."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable

from coordinator.broker.dispatch import Dispatch
from coordinator.control.caretaker import Caretaker
from coordinator.control.controller import Controller
from coordinator.control.drain import Drain
from coordinator.control.events import Events
from coordinator.control.fleet_service import FleetService
from coordinator.control.interrupts import Interrupts
from coordinator.control.job_office import JobOffice
from coordinator.control.local_worker import LocalWorker
from coordinator.control.member import Member
from coordinator.control.membership import Membership
from coordinator.control.premises import Premises
from coordinator.control.processes import Processes
from coordinator.control.turn import IDLE_S, Turn
from coordinator.control.watch import Watch
from coordinator.joining.doorkeeper import Doorkeeper, free_name
from coordinator.ledger.ledger import Ledger
from coordinator.screens.snapshot import Event
from fleet.config import StateDir
from fleet.errors import BrokerError, NoWorkersError

log = logging.getLogger(__name__)


class FleetRun:
    """One coordinator, on the state folder whose ledger it holds, inside open premises."""

    def __init__(
        self,
        premises: Premises,
        ledger: Ledger,
        state: StateDir,
        processes: Processes,
        *,
        on_event: Callable[[Event], None],
    ) -> None:
        self._premises = premises
        self._interrupts = Interrupts()
        self._events = Events(on_event)
        self._controller = Controller(
            ledger=ledger, dispatch=Dispatch(premises.broker.url), tell=self._events.tell, lasting=True
        )
        self._membership = self._let_in(premises)
        self._office = JobOffice(self._controller, ledger, state)
        self._drain = Drain(self._controller)
        self._worker = self._own_worker(state, processes) if premises.options.work else None
        self._service = FleetService(
            premises, self._controller, ledger, self._office, self._membership, self._events, self._drain.begin
        )

    def go(self, on_up: Callable[[str], None]) -> None:
        """Works until it is asked to end and every batch is finished; asked twice, it ends at once. `on_up` is given
        the token with its address once Macs can join."""
        with self._interrupts.caught():
            self._membership.expect_known()
            self._office.take_up()
            try:
                watch = Watch(self._controller, self._premises.broker, self._start_worker())
                self._premises.announce()
                on_up(self._premises.token())
                self._loop(watch)
            finally:
                self._controller.dispatch.close()
                if self._worker is not None:
                    self._worker[0].stop()

    def _loop(self, watch: Watch) -> None:
        turn = Turn(self._controller, watch)
        while self._interrupts.count < 2:
            if self._interrupts.count:
                self._drain.begin()
            self._premises.look()
            busy = self._premises.desk.serve(self._service)
            busy = self._office.turn() or busy
            try:
                busy = turn.once(send=not self._drain.begun) or busy
            except NoWorkersError as error:
                self._give_up_worker(watch, error)
            if not turn.away and self._turn_of_members():
                self._end_worker()
                return
            if not busy:
                time.sleep(IDLE_S)

    def _turn_of_members(self) -> bool:
        """Lets in who asks; True when all have drained."""
        try:
            self._membership.turn()
            return self._drain.done()
        except BrokerError as error:
            log.warning("broker: %s", error)
            return False

    # -- this Mac ------------------------------------------------------------------------------------

    def _let_in(self, premises: Premises) -> Membership:
        doorkeeper = Doorkeeper(
            premises.client, premises.users, coordinator=premises.options.name, api_port=premises.api_port
        )
        return Membership(self._controller, doorkeeper, premises.users, premises.client)

    def _own_worker(self, state: StateDir, processes: Processes) -> tuple[LocalWorker, Member]:
        name = free_name(self._premises.options.name, "", self._premises.users.accounts.workers)
        member = Member(id=secrets.token_hex(6), name=name, local=True)
        premises = self._premises
        worker = LocalWorker(
            state,
            processes,
            premises.broker,
            member.id,
            cap=0,
            memory_bytes=0,
            login=premises.users.admit_own(premises.client, member.id, name),
        )
        return worker, member

    def _start_worker(self) -> Caretaker | None:
        if self._worker is None:
            return None
        worker, member = self._worker
        worker.start()
        self._controller.add_member(member)
        return Caretaker(self._controller, worker, member)

    def _end_worker(self) -> None:
        """Ends our own worker and records what its batch still gave: rows may have begun since its last beat."""
        if self._worker is None:
            return
        self._worker[0].stop()
        try:
            while self._controller.absorb():
                pass
        except BrokerError as error:
            log.warning("broker: %s", error)

    def _give_up_worker(self, watch: Watch, error: NoWorkersError) -> None:
        """This Mac does not work any more; the others do."""
        assert self._worker is not None, "only our own worker can be given up"
        watch.forget_caretaker()
        self._worker[1].lost()
        try:
            self._controller.remove_member(self._worker[1])
        except BrokerError as failure:  # it stays in the list, as one that is lost
            log.warning("broker: %s", failure)
        self._events.tell(f"this Mac works no more: {error}")
