"""The two ends of a pair at the gate: a side that reads slowly stops the other from being read, and none ends alone."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import Any, Protocol

from coordinator.joining.strangers import Login

#: Bytes that wait for a side before the other is no longer read; a window of shards is at most 32 MB.
BUFFER_BYTES = 256 << 10
#: A silent peer is asked after this long, then this often, and given up after so many, seconds: 25 s in all.
KEEPALIVE_S, KEEPALIVE_EVERY_S, KEEPALIVE_COUNT = 10, 5, 3


class House(Protocol):
    """Who counts the clients."""

    def let_in(self, client: Client) -> None:
        """The broker knows it."""

    def left(self, client: Client) -> None:
        """It is gone."""


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

    def __init__(self, house: House) -> None:
        super().__init__()
        self._house = house
        #: None once it is let in
        self.login: Login | None = Login()
        #: ends its time as a stranger, and what works on its connection until it is joined to the broker
        self.timer: asyncio.TimerHandle | None = None
        self.meeting: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """TLS is up."""
        super().connection_made(transport)
        assert self.transport is not None, "set just now"
        self.transport.pause_reading()
        _keep_alive(transport.get_extra_info("socket"))

    def data_received(self, data: bytes) -> None:
        """Passes on; of a stranger, a login alone."""
        passed = self.login.say(data) if self.login is not None else data
        if passed is None:  # not at once: TLS is at work on it
            asyncio.get_running_loop().call_soon(self.send_away)
        else:
            super().data_received(passed)

    def connection_lost(self, error: Exception | None) -> None:
        """Ends the broker's side."""
        super().connection_lost(error)
        self._house.left(self)

    def send_away(self) -> None:
        """Ends it at once, however far it is."""
        if self.transport is not None:
            self.transport.abort()
        elif self.meeting is not None:
            self.meeting.cancel()


class BrokerSide(Side):
    """The broker's end: its first answer tells whether it lets the client in."""

    def __init__(self, client: Client, house: House) -> None:
        super().__init__()
        self.other = client
        self._client = client
        self._house = house

    def data_received(self, data: bytes) -> None:
        """Passes on; ends when a stranger is refused, which ends the stranger once it was told."""
        login = self._client.login
        super().data_received(data)
        if login is None:
            return
        if login.accepted(data):
            self._house.let_in(self._client)
        elif self.transport is not None:
            self.transport.close()


def _keep_alive(connection: Any) -> None:
    """Has the system find peers that vanished without a word."""
    idle = getattr(socket, "TCP_KEEPIDLE", None) or getattr(socket, "TCP_KEEPALIVE", None)
    with contextlib.suppress(OSError):  # it may be gone already
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if idle is not None:
            connection.setsockopt(socket.IPPROTO_TCP, idle, KEEPALIVE_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_EVERY_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEPALIVE_COUNT)
