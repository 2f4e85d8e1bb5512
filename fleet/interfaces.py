"""The addresses of this machine's interfaces, and the order in which another machine's are worth trying."""

from __future__ import annotations

import ipaddress
import socket
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import ifaddr


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnAddress:
    """One address of one interface of this machine."""

    #: without a scope
    ip: str
    #: the interface's number, which is the scope of a link-local address
    index: int
    #: bits of the network's part
    prefix: int


def own() -> tuple[OwnAddress, ...]:
    """Those of this machine that others may reach, sorted."""
    found = [
        OwnAddress(ip=ip.ip if isinstance(ip.ip, str) else ip.ip[0], index=adapter.index or 0, prefix=ip.network_prefix)
        for adapter in ifaddr.get_adapters()
        for ip in adapter.ips
    ]
    return tuple(sorted(_useful(found), key=lambda address: (address.index, address.ip)))


def ips(addresses: Iterable[OwnAddress]) -> list[str]:
    """What others may be told: each ip once."""
    return list(dict.fromkeys(address.ip for address in addresses))


def worth_trying(told: Iterable[str], mine: Sequence[OwnAddress]) -> tuple[str, ...]:
    """The addresses `told` of another machine, most promising first, none left out.

    A link-local IPv6 address means nothing without the interface it is on, so one that came without is tried on each.
    """
    scoped = [ip for text in dict.fromkeys(told) for ip in _scoped(text, mine)]
    return tuple(sorted(scoped, key=lambda text: _rank(text, mine)))


def dual_stack() -> bool:
    """Whether one socket can hear multicast of IPv4 and IPv6: on BSD and macOS it would be deaf to IPv4."""
    if sys.platform != "linux":
        return False
    try:
        socket.socket(socket.AF_INET6, socket.SOCK_DGRAM).close()
    except OSError:
        return False
    return True


def _useful(found: Sequence[OwnAddress]) -> Sequence[OwnAddress]:
    """Loopback only where there is nothing else. Link-local IPv6 only beside IPv4, unless there is no IPv4 at all: a
    Mac has half a dozen inner interfaces (awdl, llw, utun) with such an address, and each costs a second of trying."""
    outward = [address for address in found if not ipaddress.ip_address(address.ip).is_loopback]
    with_ipv4 = {address.index for address in outward if ":" not in address.ip}
    if not with_ipv4:
        return outward or found
    return [each for each in outward if each.index in with_ipv4 or not ipaddress.ip_address(each.ip).is_link_local]


def _scoped(text: str, mine: Sequence[OwnAddress]) -> list[str]:
    ip = ipaddress.ip_address(text)
    if not isinstance(ip, ipaddress.IPv6Address) or not ip.is_link_local or ip.scope_id:
        return [text]
    links = dict.fromkeys(address.index for address in mine if address.ip.lower().startswith("fe80:"))
    return [f"{text}%{index}" for index in links]


def _rank(text: str, mine: Sequence[OwnAddress]) -> int:
    """Lower is better: the same network, then what a router might reach, then a cable with nobody giving addresses,
    at last what is only right on the same machine."""
    ip = ipaddress.ip_address(text)
    if ip.is_loopback:
        return 6
    if ip.is_link_local:
        return 4 if ip.version == 4 else 5
    near = any(ip in ipaddress.ip_network(f"{address.ip}/{address.prefix}", strict=False) for address in mine)
    return (0 if near else 2) + (ip.version == 6)
