"""Finding the coordinator, and being seen by it, over multicast DNS: a hint, which proves nothing."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import sys
from dataclasses import dataclass, replace

from zeroconf import Error, InterfaceChoice, IPVersion, ServiceInfo, ServiceStateChange, Zeroconf
from zeroconf.asyncio import AsyncServiceBrowser, AsyncServiceInfo, AsyncZeroconf

from fleet.beacon import Beacon
from fleet.errors import FleetError
from fleet.interfaces import dual_stack, own, worth_trying
from fleet.messages import Host
from fleet.presence import (
    COORDINATOR,
    PRESENT,
    TTL_S,
    WANTED_DIGITS,
    WORKER,
    CoordinatorCard,
    WorkerCard,
    distinct,
    instance,
)

#: A worker's port is never called, but a DNS-SD service has one: "discard".
_NO_PORT = 9
#: How long others may still answer once the one that is meant has, seconds: an impostor may be the quickest.
_MORE_S = 0.25


class LocalNetworkError(FleetError):
    """Raised when macOS does not let this process reach the local network."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A coordinator as it advertises itself."""

    name: str
    #: all it has, the most promising first; link-local ones with the interface they are reached by
    addresses: tuple[str, ...]
    #: of the gate, and of the HTTPS API
    port: int
    api_port: int
    #: of its certificate, hex, as it says
    fingerprint: str


def find(fingerprint: bytes | None = None, timeout_s: float = 3.0) -> list[Found]:
    """Coordinators on the local network: soon those of `fingerprint`, or all that answer in `timeout_s`.

    Empty when none answers or multicast does not come through. LocalNetworkError when macOS forbids it.
    """
    try:
        found = asyncio.run(_find(fingerprint.hex() if fingerprint else "", timeout_s))
        if not found and sys.platform == "darwin":
            _call_out()
    except OSError as error:
        if (told := forbidden(error)) is not None:
            raise LocalNetworkError(told) from error
        return []
    except Error:  # the network went away under us
        return []
    return found


def forbidden(error: OSError, system: str = sys.platform) -> str | None:
    """What to do about an error that macOS gives when Local Network privacy is in the way; None for other errors.

    It gives "no route to host" for hosts that are there; seen from outside, that looks like a host that is down.
    """
    if system != "darwin" or error.errno != errno.EHOSTUNREACH:
        return None
    return (
        "Local Network access is blocked by macOS: allow it for the terminal in System Settings, Privacy & Security, "
        "Local Network, then try again"
    )


class Advert:
    """This worker, visible to coordinators until `close`."""

    def __init__(self, host: Host, wid: str, *, state: str = PRESENT, fingerprint: bytes | None = None) -> None:
        self._host = host
        self._wid = wid
        self._fleet = fingerprint.hex()[:WANTED_DIGITS] if fingerprint else ""
        self._beacon = Beacon(
            instance(host.name, wid, WORKER), self._text(state), open_air=_open, describe=self._describe
        )

    def update(self, state: str) -> None:
        """PRESENT or JOINED from now on."""
        self._beacon.say(self._text(state))

    def close(self) -> None:
        """Says goodbye."""
        self._beacon.close()

    def _text(self, state: str) -> dict[str, str]:
        card = WorkerCard(
            name=self._host.name,
            wid=self._wid,
            chip=self._host.chip,
            memory_bytes=self._host.memory_bytes,
            state=state,
            fleet=self._fleet,
        )
        return card.text()

    def _describe(self, name: str, ips: list[str], text: dict[str, str]) -> ServiceInfo:
        # A server name of its own: by default it is the wished-for instance name, also after a change of that.
        return ServiceInfo(
            WORKER,
            name,
            port=_NO_PORT,
            properties=text,
            server=f"mlxfleet-w-{self._wid}.local.",
            parsed_addresses=ips,
            host_ttl=TTL_S,
            other_ttl=TTL_S,
        )


def _open(*, use_asyncio: bool = False) -> Zeroconf:
    logging.getLogger("zeroconf").setLevel(logging.ERROR)  # it warns of each interface that is down
    version = IPVersion.All if dual_stack() else IPVersion.V4Only
    return Zeroconf(interfaces=InterfaceChoice.All, ip_version=version, use_asyncio=use_asyncio)


def _call_out() -> None:
    """Sends an empty mDNS message from each interface: zeroconf keeps to itself why its own do not leave."""
    for address in own():
        if ":" not in address.ip:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as out:
                out.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(address.ip))
                out.sendto(bytes(12), ("224.0.0.251", 5353))


async def _find(wanted: str, timeout_s: float) -> list[Found]:
    found: dict[str, Found] = {}
    tasks: set[asyncio.Task[None]] = set()
    heard = asyncio.Event()
    try:
        opened = AsyncZeroconf(zc=_open(use_asyncio=True))
    except RuntimeError:  # not one interface
        return []
    async with opened as air:

        async def resolve(name: str) -> None:
            info = AsyncServiceInfo(COORDINATOR, name)
            if await info.async_request(air.zeroconf, timeout_s * 1000):
                found[name] = _found(info)
                heard.set()

        def changed(zeroconf: Zeroconf, service_type: str, name: str, state_change: ServiceStateChange) -> None:
            del zeroconf, service_type
            if state_change is not ServiceStateChange.Removed:
                tasks.add(asyncio.ensure_future(resolve(name)))

        browser = AsyncServiceBrowser(air.zeroconf, COORDINATOR, handlers=[changed])
        try:
            async with asyncio.timeout(timeout_s):
                while not (wanted and any(each.fingerprint == wanted for each in found.values())):
                    await heard.wait()
                    heard.clear()
                await asyncio.sleep(_MORE_S)
        except TimeoutError:
            pass
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await browser.async_cancel()
    mine = sorted(
        (each for each in found.values() if wanted in ("", each.fingerprint)), key=lambda each: each.fingerprint
    )
    names = distinct([each.name for each in mine])
    return [replace(each, name=name) for each, name in zip(mine, names, strict=True)]


def _found(info: ServiceInfo) -> Found:
    card = CoordinatorCard.read(info.properties)
    return Found(
        name=card.name,
        addresses=worth_trying(info.parsed_scoped_addresses(), own()),
        port=info.port or 0,
        api_port=card.api_port,
        fingerprint=card.fingerprint,
    )
