"""The gate: lets workers reach the broker's unix socket over TLS. `coordinator.joining.gatehouse` is its process."""

from __future__ import annotations

import logging
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from coordinator.control.processes import Processes
from coordinator.joining.certificate import Certificate
from fleet import leash
from fleet.address import PORT
from fleet.config import StateDir
from fleet.errors import BrokerError

log = logging.getLogger(__name__)

#: How long the gate may take over SIGTERM, seconds.
STOP_S = 3.0
#: Connections that wait while the gate is busy or is started again.
BACKLOG = 128
#: Tries to find a port that is free in IPv4 and IPv6 alike, when any will do.
_TRIES = 20


class Gate:
    """The process, and the sockets it listens on: they stay open while another process takes its place."""

    def __init__(
        self,
        state: StateDir,
        processes: Processes,
        broker: Path,
        certificate: Certificate,
        *,
        port: int = PORT,
        local: bool = False,
    ) -> None:
        self._log = state.logs / "gate.log"
        self._processes = processes
        self._broker = broker
        self._certificate = certificate
        self._wanted = port
        self._local = local
        self._sockets: list[socket.socket] = []
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def port(self) -> int:
        """Where it listens; known once it was started."""
        return int(self._sockets[0].getsockname()[1]) if self._sockets else self._wanted

    @property
    def pid(self) -> int | None:
        """Process id, None while there is none."""
        return self._child.pid if self._child else None

    def start(self) -> None:
        """Opens the port and starts the process; BrokerError when the port is taken."""
        if not self._sockets:
            self._sockets = _listen(self._wanted, self._local)
        fds = [listener.fileno() for listener in self._sockets]
        command = [
            *(sys.executable, "-m", "coordinator.joining.gatehouse", "--broker", str(self._broker)),
            *("--certificate", str(self._certificate.path), "--key", str(self._certificate.key_path)),
            *(word for fd in fds for word in ("--listen", str(fd))),
        ]
        with self._log.open("ab") as file:
            self._child = leash.start(command, log=file, pass_fds=fds)
        self._processes.record(self._child.pid, "gate")

    def alive(self) -> bool:
        """True while its process runs."""
        return self._child is not None and self._child.poll() is None

    def restart(self) -> None:
        """Another process at the same port; connections are cut and come back."""
        self._end()
        self.start()

    def stop(self) -> None:
        """Closes the port."""
        self._end()
        for listener in self._sockets:
            listener.close()
        self._sockets = []

    def _end(self) -> None:
        child, self._child = self._child, None
        if child is None:
            return
        leash.end(child, STOP_S)


def _listen(port: int, local: bool) -> list[socket.socket]:
    """Sockets for IPv4 and, where there is one, IPv6, on the same port; 0 is any."""
    for attempt in range(_TRIES if port == 0 else 1, 0, -1):
        opened: list[socket.socket] = []
        try:
            for family, host in _families(local):
                opened.append(_listener(family, host, opened[0].getsockname()[1] if opened else port))
        except OSError as error:
            for listener in opened:
                listener.close()
            if attempt == 1:
                raise BrokerError(
                    f"port {port} cannot be opened ({(error.strerror or '').lower()}): give another with --port"
                ) from error
            continue
        return opened
    raise AssertionError("unreachable: the last attempt returns or raises")


def _families(local: bool) -> Iterator[tuple[socket.AddressFamily, str]]:
    yield socket.AF_INET, "127.0.0.1" if local else "0.0.0.0"
    if socket.has_ipv6 and _has_ipv6_loopback():
        yield socket.AF_INET6, "::1" if local else "::"


def _has_ipv6_loopback() -> bool:
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


def _listener(family: socket.AddressFamily, host: str, port: int) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener
