"""The API as `fleet up` opens it: TLS for the network, plain HTTP for this Mac, and a note where both are."""

from __future__ import annotations

from coordinator.api.app import build_app
from coordinator.api.server import EVERYWHERE, LOOPBACK, ApiServer
from coordinator.certificate import Certificate
from coordinator.front_desk import FrontDesk
from coordinator.running import Running
from fleet.config import StateDir
from fleet.token import Token


class Reception:
    """Both servers over one application. `port` is that of TLS, the next one is the plain one; 0 takes free ones."""

    def __init__(
        self,
        desk: FrontDesk,
        state: StateDir,
        token: Token,
        certificate: Certificate,
        *,
        port: int,
        local: bool = False,
    ) -> None:
        """`local` keeps TLS on loopback too. ServerError when a port is taken."""
        self._state = state
        self._token = token
        app = build_app(desk, state, token.key)
        self._secured = ApiServer(app, port=port, hosts=LOOPBACK if local else EVERYWHERE, certificate=certificate)
        try:
            self._plain = ApiServer(app, port=port and port + 1)
        except BaseException:
            self._secured.stop()
            raise
        self.port = self._secured.port
        self.plain_port = self._plain.port

    def start(self) -> None:
        """Answers from now on, and lets commands on this Mac know."""
        self._secured.start()
        self._plain.start()
        Running.here(port=self.port, plain_port=self.plain_port, token=self._token.format()).keep(self._state)

    def stop(self) -> None:
        """Ends both; answers under way are finished first."""
        Running.forget(self._state)
        self._plain.stop()
        self._secured.stop()
