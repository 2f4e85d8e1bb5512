"""Serves the application in a thread of the coordinator, on sockets that are open before it starts."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import threading
import time
from collections.abc import Sequence

import uvicorn
from starlette.types import ASGIApp

from coordinator.api.patience import Patience
from coordinator.joining.certificate import Certificate
from fleet.errors import FleetError

log = logging.getLogger(__name__)

LOOPBACK = ("127.0.0.1",)
#: Every address of this machine; IPv6 where there is any.
EVERYWHERE = ("0.0.0.0", "::")
#: Answers under way at a stop have this long, seconds.
GRACE_S = 3
START_S = 10.0
LAST_PORT = 65_535
#: For the loop to close what was aborted, seconds.
ABORT_S = 0.02
#: Requests at once; more are told to come back. Each may take a thread and a file.
REQUESTS = 200


class ServerError(FleetError):
    """Raised when the API cannot listen or does not start."""


class ApiServer:
    """One application on one port. With a certificate it speaks TLS 1.3, else plain HTTP: for loopback only."""

    def __init__(
        self, app: ASGIApp, *, port: int, hosts: Sequence[str] = LOOPBACK, certificate: Certificate | None = None
    ) -> None:
        if certificate is None and tuple(hosts) != LOOPBACK:
            raise ValueError("plain HTTP would tell the key to the network")
        self._sockets = _listen(hosts, port)
        #: the one it was given, or the one that 0 became
        self.port: int = self._sockets[0].getsockname()[1]
        self._server = uvicorn.Server(_config(app, certificate))
        self._thread = threading.Thread(target=self._run, name=f"api-{self.port}", daemon=True)

    def start(self) -> None:
        """Answers from now on; ServerError when it does not come up."""
        self._thread.start()
        deadline = time.monotonic() + START_S
        while not self._server.started:
            if not self._thread.is_alive() or time.monotonic() > deadline:
                raise ServerError(f"the API did not start on port {self.port}: the coordinator's log says why")
            time.sleep(0.01)

    def stop(self) -> None:
        """Ends it: answers under way are finished within GRACE_S. Twice does no harm."""
        self._server.should_exit = True
        if self._thread.is_alive():
            self._thread.join(GRACE_S + 2)
        for listening in self._sockets:
            listening.close()

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except (OSError, SystemExit) as error:
            log.error("the API ended: %s", error)

    async def _serve(self) -> None:
        await self._server.serve(sockets=self._sockets)
        for connection in list(self._server.server_state.connections):  # a client that does not answer TLS' goodbye
            connection.transport.abort()
        await asyncio.sleep(ABORT_S)


def _config(app: ASGIApp, certificate: Certificate | None) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=Patience,
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="warning",
        access_log=False,  # a path may hold a name that somebody chose
        server_header=False,
        proxy_headers=False,
        limit_concurrency=REQUESTS,
        timeout_graceful_shutdown=GRACE_S,
        ssl_context_factory=None if certificate is None else lambda *_: _tls(certificate),
    )


def _tls(certificate: Certificate) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_cert_chain(certificate.path, certificate.key_path)
    return context


def _listen(hosts: Sequence[str], port: int) -> list[socket.socket]:
    """A socket for each host, all on one port; a family that this machine lacks is passed over."""
    if port > LAST_PORT:
        raise ServerError(f"there is no port {port:,}, and the API is behind the gate: choose a lower one with --port")
    opened: list[socket.socket] = []
    for host in hosts:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            made = socket.create_server((host, port), family=family, backlog=128)
        except OSError as error:
            if opened and family == socket.AF_INET6:
                continue
            raise ServerError(f"port {port} cannot be opened ({error.strerror}): choose another with --port") from error
        port = made.getsockname()[1]
        opened.append(made)
    return opened
