"""The ways from this Mac to its coordinator: many addresses, one certificate. Opens TLS to the first that answers."""

from __future__ import annotations

import logging
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Sequence

import redis
from redis.backoff import NoBackoff
from redis.connection import Connection
from redis.maint_notifications import MaintNotificationsConfig
from redis.retry import Retry

from fleet import pin
from fleet.address import Address
from worker.client import REPLY_S

log = logging.getLogger(__name__)

#: The network is searched again for a coordinator that answers nowhere, but not more often than this, seconds.
SEARCH_AGAIN_S = 10.0
#: Addresses remembered at most.
MAX_ADDRESSES = 16
#: A silent peer is asked after this long, then this often, and given up after so many, seconds: 25 s in all.
KEEPALIVE_S, KEEPALIVE_EVERY_S, KEEPALIVE_COUNT = 10, 5, 3


class Road:
    """Shared by all connections of a worker, which open and lose theirs on several threads."""

    def __init__(
        self,
        certificate: str,
        addresses: Iterable[Address],
        *,
        search: Callable[[], Sequence[Address]] = tuple,
        arrived: Callable[[Sequence[Address]], object] = len,
    ) -> None:
        """`certificate` (PEM) is the only one trusted. `search` may take seconds; `arrived` hears when another address
        than before was good."""
        self._context = pin.context(certificate)
        self._addresses = list(dict.fromkeys(addresses))
        self._search = search
        self._arrived = arrived
        self._lock = threading.Lock()
        self._searching = False
        self._searched_s = time.monotonic() - SEARCH_AGAIN_S

    @property
    def addresses(self) -> list[Address]:
        """All known, the last good one first."""
        with self._lock:
            return list(self._addresses)

    def client(self, user: str, password: str) -> redis.Redis:
        """A client of the broker at the end of the road; connects when first used, to wherever it is then."""
        pool = redis.ConnectionPool(
            connection_class=RoadConnection,
            road=self,
            username=user,
            password=password,
            socket_timeout=REPLY_S,
            retry=Retry(NoBackoff(), 0),
            maint_notifications_config=MaintNotificationsConfig(enabled=False),
        )
        return redis.Redis.from_pool(pool)

    def open(self) -> ssl.SSLSocket:
        """A connection to the coordinator; OSError of the last address when none is good."""
        trouble: OSError = ConnectionRefusedError("no address of the coordinator is known")
        for address in self.addresses:
            try:
                secured = self._open(address)
            except (OSError, UnicodeError) as error:
                trouble = error if isinstance(error, OSError) else OSError(str(error))
                log.debug("%s: %s", address, type(error).__name__)
                continue
            self._good(address)
            return secured
        self._search_soon()
        raise trouble

    def _open(self, address: Address) -> ssl.SSLSocket:
        plain = socket.create_connection((address.host, address.port), pin.CONNECT_S)
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            _keep_alive(plain)
            plain.settimeout(pin.HANDSHAKE_S)
            return self._context.wrap_socket(plain)
        except OSError:
            plain.close()
            raise

    def _good(self, address: Address) -> None:
        with self._lock:
            if self._addresses[0] == address:
                return
            self._addresses = [address, *(other for other in self._addresses if other != address)]
            known = list(self._addresses)
        log.info("the coordinator is at %s", address)
        self._arrived(known)

    def _search_soon(self) -> None:
        with self._lock:
            if self._searching or time.monotonic() - self._searched_s < SEARCH_AGAIN_S:
                return
            self._searching = True
        threading.Thread(target=self._look_around, name="search", daemon=True).start()

    def _look_around(self) -> None:
        try:
            found = self._search()
        finally:
            with self._lock:
                self._searching, self._searched_s = False, time.monotonic()
        with self._lock:
            self._addresses = list(dict.fromkeys([*found, *self._addresses]))[:MAX_ADDRESSES]


class RoadConnection(Connection):
    """A connection of redis-py's over TLS of our own: its own would trust the system's certificates besides."""

    def __init__(self, *, road: Road, **options: object) -> None:
        super().__init__(**options)  # type: ignore[no-untyped-call]
        self._road = road

    def _connect(self) -> ssl.SSLSocket:
        secured = self._road.open()
        secured.settimeout(self.socket_timeout)
        return secured

    def _host_error(self) -> str:
        return "the coordinator"


def _keep_alive(connection: socket.socket) -> None:
    """Has the system find a coordinator that vanished without a word."""
    idle = getattr(socket, "TCP_KEEPIDLE", None) or getattr(socket, "TCP_KEEPALIVE", None)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if idle is not None:
        connection.setsockopt(socket.IPPROTO_TCP, idle, KEEPALIVE_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_EVERY_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEPALIVE_COUNT)
