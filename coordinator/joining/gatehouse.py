"""`python -m coordinator.joining.gatehouse`: joins TLS 1.3 connections to the broker's unix socket, each to its own.

It passes bytes on and reads none but the broker's first answers: until one of them shows that it knows the client, the
connection is a stranger's, which makes way for others and ends soon. A side that reads slowly stops the other from
being read. TLS here knows no half-open connection: an end on one side ends both, once what was read before it is
written.
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

from coordinator.joining.strangers import Greeting, Limits, Strangers
from fleet import leash, open_files

log = logging.getLogger(__name__)

#: Bytes that wait for a side before the other is no longer read; a window of shards is at most 32 MB.
BUFFER_BYTES = 256 << 10
#: How long a client may take over the handshake, and over the end of TLS, seconds.
HANDSHAKE_S = 10.0
SHUTDOWN_S = 3.0
#: Pause when no connection could be taken, seconds.
ACCEPT_AGAIN_S = 0.2
#: A crowd is told of so often, seconds.
TELL_AGAIN_S = 60.0
#: Connections of those that are let in, at a time. A worker needs about six; each takes two files.
MAX_CLIENTS = 2000
_FILES = 2 * (MAX_CLIENTS + Limits().most) + 100
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
        #: ends its time as a stranger, and what works on its connection until it is joined to the broker
        self.timer: asyncio.TimerHandle | None = None
        self.meeting: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """TLS is up."""
        super().connection_made(transport)
        assert self.transport is not None, "set just now"
        self.transport.pause_reading()
        _keep_alive(transport.get_extra_info("socket"))

    def connection_lost(self, error: Exception | None) -> None:
        """Ends the broker's side."""
        super().connection_lost(error)
        self._gatehouse.left(self)

    def send_away(self) -> None:
        """Ends it at once, however far it is."""
        if self.transport is not None:
            self.transport.abort()
        elif self.meeting is not None:
            self.meeting.cancel()


class BrokerSide(Side):
    """The broker's end: its first answers tell whether it lets the client in."""

    def __init__(self, client: Client, gatehouse: Gatehouse) -> None:
        super().__init__()
        self.other = client
        self._client = client
        self._gatehouse = gatehouse
        self._greeting: Greeting | None = Greeting()

    def data_received(self, data: bytes) -> None:
        """Passes on."""
        if self._greeting is not None and self._greeting.lets_in(data):
            self._greeting = None
            self._gatehouse.let_in(self._client)
        super().data_received(data)


class Gatehouse:
    """All pairs. Who has not been let in by the broker is a stranger, of whom there are few, and none for long."""

    def __init__(self, broker: str, context: ssl.SSLContext, limits: Limits | None = None) -> None:
        self._broker = broker
        self._context = context
        self._limits = limits or Limits()
        self._strangers: Strangers[Client] = Strangers(self._limits)
        self._welcome: set[Client] = set()
        self._tell_s = 0.0

    async def serve(self, listener: socket.socket) -> None:
        """Takes connections in until it is cancelled."""
        loop = asyncio.get_running_loop()
        listener.setblocking(False)
        while True:
            try:
                connection, peer = await loop.sock_accept(listener)
            except OSError as error:  # it is gone already, or no file is free
                log.warning("a connection could not be taken (%s)", error.strerror)
                await asyncio.sleep(ACCEPT_AGAIN_S)
                continue
            self._arrived(connection, str(peer[0]))

    def let_in(self, client: Client) -> None:
        """The broker knows it: from now on it may stay."""
        self._forget(client)
        self._welcome.add(client)

    def left(self, client: Client) -> None:
        """Forgets a client."""
        self._forget(client)
        self._welcome.discard(client)

    def _arrived(self, connection: socket.socket, address: str) -> None:
        if len(self._welcome) >= MAX_CLIENTS:
            log.warning("%s is turned away: %d connections are open", address, len(self._welcome))
            connection.close()
            return
        loop, client = asyncio.get_running_loop(), Client(self)
        client.meeting = loop.create_task(self._meet(client, connection, address))
        client.meeting.add_done_callback(
            lambda task: self._broken_off(client, connection) if task.cancelled() else None
        )
        client.timer = loop.call_later(self._limits.patience_s, client.send_away)
        crowded_out = self._strangers.add(client, address)
        if crowded_out is not None:
            crowded_out.send_away()
            if loop.time() >= self._tell_s:
                self._tell_s = loop.time() + TELL_AGAIN_S
                log.warning("%s: so many connections say nothing that the oldest make way", address)

    def _broken_off(self, client: Client, connection: socket.socket) -> None:
        """It was sent away before TLS was up."""
        connection.close()
        self.left(client)

    def _forget(self, client: Client) -> None:
        """It is no stranger any more."""
        self._strangers.discard(client)
        if client.timer is not None:
            client.timer.cancel()

    async def _meet(self, client: Client, connection: socket.socket, address: str) -> None:
        """TLS, then a connection of the broker's for it."""
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: client,
                connection,
                ssl=self._context,
                ssl_handshake_timeout=HANDSHAKE_S,
                ssl_shutdown_timeout=SHUTDOWN_S,
            )
        except OSError as error:  # strangers can cause it at will
            log.info("a connection failed: %s", type(error).__name__)
            self.left(client)
        else:
            await self._join(client, address)

    async def _join(self, client: Client, address: str) -> None:
        assert client.transport is not None, "set when its connection was made"
        side = BrokerSide(client, self)
        try:
            await asyncio.get_running_loop().create_unix_connection(lambda: side, self._broker)
        except OSError as error:
            log.warning("%s is turned away: the broker is away (%s)", address, error.strerror)
            client.transport.abort()
            return
        client.other = side
        if client.transport.is_closing():
            client.connection_lost(None)
        else:
            client.transport.resume_reading()


def _keep_alive(connection: Any) -> None:
    """Has the system find peers that vanished without a word."""
    idle = getattr(socket, "TCP_KEEPIDLE", None) or getattr(socket, "TCP_KEEPALIVE", None)
    with contextlib.suppress(OSError):  # it may be gone already
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if idle is not None:
            connection.setsockopt(socket.IPPROTO_TCP, idle, KEEPALIVE_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_EVERY_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEPALIVE_COUNT)


async def _serve(gatehouse: Gatehouse, listeners: Sequence[socket.socket]) -> None:
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(_note)
    tasks = [loop.create_task(gatehouse.serve(listener)) for listener in listeners]
    log.info("open at %s", ", ".join(str(listener.getsockname()) for listener in listeners))
    ended = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, ended.set)
    await ended.wait()
    for task in tasks:
        task.cancel()


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
    asyncio.run(_serve(Gatehouse(args.broker, _context(args.certificate, args.key)), listeners))
    return 0


if __name__ == "__main__":
    sys.exit(main())
