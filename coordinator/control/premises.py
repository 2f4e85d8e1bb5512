"""What is open while a fleet is up: its broker with its users, the gate, the API, the advertisement. A context."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import redis

from coordinator.api.app import build_app
from coordinator.api.server import EVERYWHERE, LOOPBACK, ApiServer, ServerError
from coordinator.broker.broker import Broker, connect
from coordinator.control.front_desk import FrontDesk
from coordinator.control.processes import Processes
from coordinator.control.running import Running
from coordinator.joining.accounts import Accounts
from coordinator.joining.certificate import Certificate
from coordinator.joining.discovery import Discovery
from coordinator.joining.gate import Gate
from coordinator.joining.users import Users
from fleet.address import Address
from fleet.config import StateDir
from fleet.interfaces import ips, own

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetOptions:
    """How to run a coordinator."""

    #: as others see it
    name: str
    #: of the gate; the API's is the next one; 0 for any
    port: int
    #: this Mac works too
    work: bool = False
    #: nobody but this Mac can reach it, and it is advertised to nobody
    local: bool = False


class Premises:
    """Opened in order and closed in the opposite one. `broker`, `gate`, `client` and ports are there inside only."""

    def __init__(self, state: StateDir, processes: Processes, options: FleetOptions) -> None:
        self.options = options
        self.users = Users(Accounts(state))
        self.certificate = Certificate.of(state)
        self.desk = FrontDesk()
        self.broker = Broker(state, processes, users=self.users)
        self.discovery: Discovery | None = None
        self.api_port = 0
        self.plain_port = 0
        self._state = state
        self._processes = processes
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.callback(self.broker.stop)
            self.broker.start()
            self.client: redis.Redis = connect(self.broker.url)
            stack.callback(self.client.close)
            self.gate = self._open_gate(stack)
            self._open_api(stack)
            if not self.options.local:
                self.discovery = Discovery(
                    self.options.name,
                    port=self.gate.port,
                    api_port=self.api_port,
                    fingerprint=self.certificate.fingerprint,
                )
                stack.callback(self.discovery.close)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    def announce(self) -> None:
        """Lets commands of this Mac find us, until the end."""
        self._stack.callback(Running.forget, self._state)
        Running.here(port=self.api_port, plain_port=self.plain_port, token=self.token()).keep(self._state)

    def look(self) -> None:
        """Repairs what is broken: the gate; the broker is the watch's."""
        if not self.gate.alive():
            log.warning("the gate is gone: starting another")
            self.gate.restart()

    def places(self) -> tuple[Address, ...]:
        """Where Macs find the gate, the most promising first."""
        hosts = [] if self.options.local else sorted(ips(own()), key=lambda ip: ":" in ip)
        return tuple(Address(host, self.gate.port) for host in hosts or ["127.0.0.1"])

    def token(self) -> str:
        """The join token as it is now, with the address behind it."""
        return self.users.accounts.token(self.certificate.fingerprint).format(self.places()[0])

    def _open_gate(self, stack: ExitStack) -> Gate:
        options = self.options
        gate = Gate(
            self._state,
            self._processes,
            self.broker.socket,
            self.certificate,
            port=options.port,
            local=options.local,
        )
        stack.callback(gate.stop)
        gate.start()
        return gate

    def _open_api(self, stack: ExitStack) -> None:
        """One for other Macs over TLS, on the port beside the gate's, and a plain one for this Mac on the next."""
        app = build_app(self.desk, self._state, self.users.accounts.secrets.key, self.users.accounts.get)
        hosts = LOOPBACK if self.options.local else EVERYWHERE
        outer = self._listen(lambda port: ApiServer(app, port=port, hosts=hosts, certificate=self.certificate), 1)
        inner = self._listen(lambda port: ApiServer(app, port=port), 2)
        for server in (outer, inner):
            stack.callback(server.stop)
            server.start()
        self.api_port, self.plain_port = outer.port, inner.port

    def _listen(self, make: Callable[[int], ApiServer], behind: int) -> ApiServer:
        """A server so many ports behind the gate; where any port would do, on any if that one is taken."""
        try:
            return make(self.gate.port + behind)
        except ServerError:
            if self.options.port:
                raise
            return make(0)
