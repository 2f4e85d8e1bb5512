"""`python -m coordinator.joining.gatehouse`: joins TLS 1.3 connections to the broker's unix socket, each to its own.

It passes bytes on and reads none of them. A side that reads slowly stops the other from being read. TLS here knows no
half-open connection: an end on one side ends both, once what was read before it is written.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import signal
import socket
import ssl
import sys
from collections.abc import Sequence
from typing import Any

from fleet import leash, open_files

log = logging.getLogger(__name__)

#: Bytes that wait for a side before the other is no longer read; a window of shards is at most 32 MB.
BUFFER_BYTES = 256 << 10
#: How long a client may take over the handshake, and over the end of TLS, seconds.
HANDSHAKE_S = 10.0
SHUTDOWN_S = 3.0
#: Connections at a time. A worker needs about six; each takes two files.
MAX_CLIENTS = 2000
_FILES = 2 * MAX_CLIENTS + 100
#: A silent peer is asked after this long, then this often, and given up after so many, seconds: 25 s in all.
KEEPALIVE_S, KEEPALIVE_EVERY_S, KEEPALIVE_COUNT = 10, 5, 3


class Side(asyncio.Protocol):
    """One end of a joined pair."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.other: Side | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Bounds what may wait for this side."""
        assert isinstance(transport, asyncio.Transport), "stream transports only"
        transport.set_write_buffer_limits(high=BUFFER_BYTES)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        """Passes on."""
        assert self.other is not None, "a client is not read before the broker's side is there"
        assert self.other.transport is not None, "set when its connection was made"
        self.other.transport.write(data)

    def pause_writing(self) -> None:
        """This side reads too slowly: the other must wait."""
        if self.other is not None and self.other.transport is not None:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        """This side has caught up."""
        if self.other is not None and self.other.transport is not None:
            self.other.transport.resume_reading()

    def connection_lost(self, _error: Exception | None) -> None:
        """Ends the other side, after what waits for it was written."""
        if self.other is not None and self.other.transport is not None:
            self.other.transport.close()


class Client(Side):
    """A worker's end: read once the broker's is there."""

    def __init__(self, gatehouse: Gatehouse) -> None:
        super().__init__()
        self._gatehouse = gatehouse

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """TLS is up: the broker is called."""
        super().connection_made(transport)
        _keep_alive(transport.get_extra_info("socket"))
        self._gatehouse.arrived(self)

    def connection_lost(self, error: Exception | None) -> None:
        """Ends the broker's side."""
        super().connection_lost(error)
        self._gatehouse.left(self)


class Gatehouse:
    """All pairs."""

    def __init__(self, broker: str) -> None:
        self._broker = broker
        self._clients: set[Client] = set()
        self._calls: set[asyncio.Task[None]] = set()

    def arrived(self, client: Client) -> None:
        """Joins a client to a new connection of the broker."""
        assert client.transport is not None, "set when its connection was made"
        if len(self._clients) >= MAX_CLIENTS:
            log.warning("%s is turned away: %d connections are open", _peer(client), len(self._clients))
            client.transport.abort()
            return
        self._clients.add(client)
        client.transport.pause_reading()
        call = asyncio.get_running_loop().create_task(self._join(client))
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)

    def left(self, client: Client) -> None:
        """Forgets a client."""
        self._clients.discard(client)

    async def _join(self, client: Client) -> None:
        assert client.transport is not None, "set when its connection was made"
        side = Side()
        side.other = client
        try:
            await asyncio.get_running_loop().create_unix_connection(lambda: side, self._broker)
        except OSError as error:
            log.warning("%s is turned away: the broker is away (%s)", _peer(client), error.strerror)
            client.transport.abort()
            return
        client.other = side
        if client.transport.is_closing():
            client.connection_lost(None)
        else:
            client.transport.resume_reading()


def _peer(client: Client) -> str:
    name = client.transport.get_extra_info("peername") if client.transport else None
    return str(name[0]) if name else "a client"


def _keep_alive(connection: Any) -> None:
    """Has the system find peers that vanished without a word."""
    idle = getattr(socket, "TCP_KEEPIDLE", None) or getattr(socket, "TCP_KEEPALIVE", None)
    with contextlib.suppress(OSError):  # it may be gone already
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if idle is not None:
            connection.setsockopt(socket.IPPROTO_TCP, idle, KEEPALIVE_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_EVERY_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEPALIVE_COUNT)


async def _serve(broker: str, listeners: Sequence[socket.socket], context: ssl.SSLContext) -> None:
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(_note)
    gatehouse = Gatehouse(broker)
    servers = [
        await loop.create_server(
            lambda: Client(gatehouse),
            sock=listener,
            ssl=context,
            ssl_handshake_timeout=HANDSHAKE_S,
            ssl_shutdown_timeout=SHUTDOWN_S,
        )
        for listener in listeners
    ]
    log.info("open at %s", ", ".join(str(listener.getsockname()) for listener in listeners))
    ended = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, ended.set)
    await ended.wait()
    for server in servers:
        server.close()


def _note(_loop: asyncio.AbstractEventLoop, trouble: dict[str, Any]) -> None:
    """One line instead of a traceback: strangers can cause it at will."""
    error = trouble.get("exception")
    log.info("a connection failed: %s", type(error).__name__ if error else trouble.get("message"))


def _context(certificate: str, key: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_cert_chain(certificate, key)
    return context


def main(argv: Sequence[str] | None = None) -> int:
    """Serves until SIGTERM, or until whoever started it is gone."""
    parser = argparse.ArgumentParser(prog="python -m coordinator.joining.gatehouse", description=__doc__)
    parser.add_argument("--broker", required=True, metavar="PATH", help="the broker's unix socket")
    parser.add_argument("--certificate", required=True, metavar="PEM")
    parser.add_argument("--key", required=True, metavar="PEM")
    parser.add_argument("--listen", required=True, action="append", type=int, metavar="FD", help="listening socket")
    args = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    leash.hold()
    open_files.allow(_FILES)
    listeners = [socket.socket(fileno=fd) for fd in args.listen]
    asyncio.run(_serve(args.broker, listeners, _context(args.certificate, args.key)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
