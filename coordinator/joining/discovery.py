"""The coordinator on multicast DNS: it advertises itself and sees which workers are present, which is not alive.

Commands look there for the coordinator of a token that has no address.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from zeroconf import Error, InterfaceChoice, IPVersion, ServiceInfo, ServiceListener, Zeroconf

from fleet.address import Address
from fleet.beacon import Beacon
from fleet.interfaces import dual_stack, own, worth_trying
from fleet.presence import COORDINATOR, TTL_S, WANTED_DIGITS, WORKER, CoordinatorCard, WorkerCard, distinct, instance

#: How long the records of a worker that was named may take to come, milliseconds.
_RESOLVE_MS = 1500
#: Macs are resolved anew this often, seconds: one whose records ran out and that does not answer is gone. zeroconf's
#: browser would keep it for 19 minutes, however short its records are meant to live.
_AGAIN_S = 30.0
#: How long a command looks for its coordinator, seconds; and how long after it answered, as an impostor may be quicker.
SEARCH_S = 3.0
_MORE_S = 0.25
#: So many Macs are remembered at most: anybody on the network may name any number.
_MOST = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A worker as it advertises itself, whether it has joined or not."""

    name: str
    wid: str
    chip: str
    memory_bytes: int
    #: `fleet.presence.PRESENT` or JOINED, as it says
    state: str
    #: first digits of the fingerprint that its token has, empty without a token
    fleet: str
    #: the most promising first
    addresses: tuple[str, ...]
    #: when it last said anything new, unix seconds
    seen: float

    def wants(self, fingerprint: bytes) -> bool:
        """Whether its token, if it has one, is of the coordinator with this fingerprint."""
        return self.fleet in ("", fingerprint.hex()[:WANTED_DIGITS])


class Discovery:
    """Advertises this coordinator until `close`, and knows which workers are on the network."""

    def __init__(self, name: str, *, port: int, api_port: int, fingerprint: bytes) -> None:
        self._port = port
        self._server = f"mlxfleet-{fingerprint.hex()[:WANTED_DIGITS]}.local."
        self._macs = _Macs()
        card = CoordinatorCard(name=name, api_port=api_port, fingerprint=fingerprint.hex())
        self._beacon = Beacon(
            instance(name, fingerprint.hex(), COORDINATOR),
            card.text(),
            open_air=self._open,
            describe=self._describe,
            tend=self._macs.refresh,
        )

    def macs(self) -> tuple[Seen, ...]:
        """Workers that advertise themselves, by name; one that was killed stays for a few minutes."""
        return self._macs.all()

    def close(self) -> None:
        """Says goodbye."""
        self._beacon.close()

    def _open(self) -> Zeroconf:
        air = _open_air()
        self._macs.forget_all()
        air.add_service_listener(WORKER, self._macs)
        return air

    def _describe(self, name: str, ips: list[str], text: dict[str, str]) -> ServiceInfo:
        # A server name of its own: by default it is the wished-for instance name, also after a change of that.
        return ServiceInfo(
            COORDINATOR,
            name,
            port=self._port,
            properties=text,
            server=self._server,
            parsed_addresses=ips,
            host_ttl=TTL_S,
            other_ttl=TTL_S,
        )


def find_api(fingerprint: bytes, timeout_s: float = SEARCH_S) -> tuple[Address, ...]:
    """Where the API of the coordinator with this certificate is, as the network says, which proves nothing; empty when
    nobody says so in time."""
    names, found = _Names(), dict[Address, None]()
    ends = time.monotonic() + timeout_s
    try:
        air = _open_air()
    except (OSError, RuntimeError):  # not one interface
        return ()
    try:
        air.add_service_listener(COORDINATOR, names)
        while (left_s := ends - time.monotonic()) > 0:
            info = ServiceInfo(COORDINATOR, names.heard.get(timeout=left_s))
            if not info.request(air, min(_RESOLVE_MS, left_s * 1000)):
                continue
            card = CoordinatorCard.read(info.properties)
            if card.fingerprint == fingerprint.hex() and card.api_port:
                hosts = worth_trying(info.parsed_scoped_addresses(), own())
                found |= dict.fromkeys(Address(host, card.api_port) for host in hosts)
                ends = min(ends, time.monotonic() + _MORE_S)
    except (queue.Empty, Error, OSError):  # the time is over, or the network went away
        pass
    finally:
        air.close()
    return tuple(found)


def _open_air() -> Zeroconf:
    logging.getLogger("zeroconf").setLevel(logging.ERROR)  # it warns of each interface that is down
    version = IPVersion.All if dual_stack() else IPVersion.V4Only
    return Zeroconf(interfaces=InterfaceChoice.All, ip_version=version, use_asyncio=False)


class _Names(ServiceListener):
    """Passes on the names that the browser's thread hears."""

    def __init__(self) -> None:
        self.heard: queue.Queue[str] = queue.Queue()

    def add_service(self, zc: Zeroconf, type_: str, name: str) -> None:
        """Named."""
        del zc, type_
        self.heard.put(name)

    def update_service(self, zc: Zeroconf, type_: str, name: str) -> None:
        """Named again."""
        self.add_service(zc, type_, name)

    def remove_service(self, zc: Zeroconf, type_: str, name: str) -> None:
        """Gone: its address will not answer."""


class _Macs(ServiceListener):
    """What the browser's thread hears, for others to read."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._seen: dict[str, Seen] = {}
        self._due_s = 0.0
        self._lock = threading.Lock()

    def all(self) -> tuple[Seen, ...]:
        """By name, each one's different."""
        with self._lock:
            seen = sorted(self._seen.values(), key=lambda seen: (seen.name, seen.wid))
        names = distinct([each.name for each in seen])
        return tuple(replace(each, name=name) for each, name in zip(seen, names, strict=True))

    def forget_all(self) -> None:
        """The browser begins anew."""
        with self._lock:
            self._seen.clear()

    def refresh(self, zc: Zeroconf) -> None:
        """Asks after each, when that is due."""
        if time.monotonic() < self._due_s:
            return
        with self._lock:
            names = list(self._seen)
        for name in names:
            self.add_service(zc, WORKER, name)
        self._due_s = time.monotonic() + _AGAIN_S

    def add_service(self, zc: Zeroconf, type_: str, name: str) -> None:
        """A worker was named, or said something new, or is asked after."""
        info = ServiceInfo(type_, name)
        if not info.request(zc, _RESOLVE_MS):
            self.remove_service(zc, type_, name)
            return
        card = WorkerCard.read(info.properties)
        now = Seen(
            name=card.name,
            wid=card.wid,
            chip=card.chip,
            memory_bytes=card.memory_bytes,
            state=card.state,
            fleet=card.fleet,
            addresses=worth_trying(info.parsed_scoped_addresses(), own()),
            seen=self._clock(),
        )
        with self._lock:
            before = self._seen.get(name)
            if before is not None and replace(now, seen=before.seen) == before:
                return
            if before is not None or len(self._seen) < _MOST:
                self._seen[name] = now

    def update_service(self, zc: Zeroconf, type_: str, name: str) -> None:
        """The same."""
        self.add_service(zc, type_, name)

    def remove_service(self, zc: Zeroconf, type_: str, name: str) -> None:
        """It said goodbye, or was not heard of for long."""
        del zc, type_
        with self._lock:
            self._seen.pop(name, None)
