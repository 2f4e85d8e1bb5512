"""`python -m coordinator.joining.gatehouse`: joins TLS 1.3 connections to the broker's unix socket, each to its own.

It passes bytes on and reads none but the first: a client has to log in, with AUTH or HELLO and nothing before it, and
the broker's answer has to accept it. Until then the connection is a stranger's, which may say little, makes way for
others and ends soon; it ends at once when it says something else or is refused. TLS here knows no half-open connection:
an end on one side ends both, once what was read before it is written.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import signal
import socket
import ssl
import sys
from asyncio import sslproto
from collections.abc import Sequence
from typing import Any

from coordinator.joining.sides import BrokerSide, Client
from coordinator.joining.strangers import Limits, Strangers
from fleet import leash, open_files

log = logging.getLogger(__name__)

#: Bytes that TLS reads at once, for which it keeps a buffer of its own for each connection: 400 strangers made this
#: process 58 MB large, and 133 MB with asyncio's 256 KiB, for the same CPU time (16 KiB: 39 MB, a third more of it).
TLS_READ_BYTES = 64 << 10
#: Python's thresholds for freeing what refers to itself, as a connection does whose handshake fails. After a minute's
#: flood of them this process was 325 MB large with the usual ones, and 96 MB with these.
COLLECT = (700, 2, 1)
#: How long a client may take over the handshake, and over the end of TLS, seconds.
HANDSHAKE_S = 10.0
SHUTDOWN_S = 3.0
#: Pause when no connection could be taken, seconds.
ACCEPT_AGAIN_S = 0.2
#: What strangers can cause at will is told so often, seconds.
TELL_AGAIN_S = 60.0
#: Each connection takes two.
_FILES = 2 * (Limits().most_let_in + Limits().most) + 100


class Gatehouse:
    """All pairs. Who has not been let in by the broker is a stranger, of whom there are few, and none for long."""

    def __init__(self, broker: str, context: ssl.SSLContext, limits: Limits | None = None) -> None:
        self._broker = broker
        self._context = context
        self._limits = limits or Limits()
        self._strangers: Strangers[Client] = Strangers(self._limits)
        self._welcome: set[Client] = set()
        #: when each kind of trouble was told last, on the loop's clock, seconds
        self._told_s: dict[str, float] = {}

    async def serve(self, listener: socket.socket) -> None:
        """Takes connections in until it is cancelled."""
        loop = asyncio.get_running_loop()
        listener.setblocking(False)
        while True:
            try:
                connection, peer = await loop.sock_accept(listener)
            except OSError as error:  # it is gone already, or no file is free
                self._tell("a connection could not be taken (%s)", error.strerror)
                await asyncio.sleep(ACCEPT_AGAIN_S)
                continue
            self._arrived(connection, str(peer[0]))
            await asyncio.sleep(0)  # taking one that waits does not: those that end must get to it

    def let_in(self, client: Client) -> None:
        """The broker knows it: from now on it may stay, if there is room."""
        self._forget(client)
        if self._is_full():
            client.send_away()
            return
        client.login = None
        self._welcome.add(client)

    def left(self, client: Client) -> None:
        """Forgets a client."""
        self._forget(client)
        self._welcome.discard(client)

    def note(self, _loop: asyncio.AbstractEventLoop, trouble: dict[str, Any]) -> None:
        """One line instead of a traceback for what went wrong in a callback."""
        error = trouble.get("exception")
        self._tell("a connection failed: %s", type(error).__name__ if error else trouble.get("message"))

    def _arrived(self, connection: socket.socket, address: str) -> None:
        if self._is_full():
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
            self._tell("%s: so many connections say nothing that the oldest make way", address)

    def _is_full(self) -> bool:
        full = len(self._welcome) >= self._limits.most_let_in
        if full:
            self._tell("more are turned away: %d connections are open", len(self._welcome))
        return full

    def _tell(self, text: str, *words: object) -> None:
        """Logs it, unless it did so just now: strangers could fill the disk."""
        now_s = asyncio.get_running_loop().time()
        if now_s >= self._told_s.get(text, -TELL_AGAIN_S) + TELL_AGAIN_S:
            self._told_s[text] = now_s
            log.warning(text, *words)

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
        except OSError as error:
            self._tell("%s: a connection failed (%s)", address, type(error).__name__)
            self.left(client)
        else:
            await self._join(client, address)

    async def _join(self, client: Client, address: str) -> None:
        assert client.transport is not None, "set when its connection was made"
        side = BrokerSide(client, self)
        try:
            await asyncio.get_running_loop().create_unix_connection(lambda: side, self._broker)
        except OSError as error:
            self._tell("%s is turned away: the broker is away (%s)", address, error.strerror)
            client.transport.abort()
            return
        client.other = side
        if client.transport.is_closing():
            client.connection_lost(None)
        else:
            client.transport.resume_reading()


async def _serve(gatehouse: Gatehouse, listeners: Sequence[socket.socket]) -> None:
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(gatehouse.note)
    tasks = [loop.create_task(gatehouse.serve(listener)) for listener in listeners]
    log.info("open at %s", ", ".join(str(listener.getsockname()) for listener in listeners))
    ended = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, ended.set)
    await ended.wait()
    for task in tasks:
        task.cancel()


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
    sslproto.SSLProtocol.max_size = TLS_READ_BYTES
    gc.freeze()
    gc.set_threshold(*COLLECT)
    listeners = [socket.socket(fileno=fd) for fd in args.listen]
    asyncio.run(_serve(Gatehouse(args.broker, _context(args.certificate, args.key)), listeners))
    return 0


if __name__ == "__main__":
    sys.exit(main())
