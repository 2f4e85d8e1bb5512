"""Connections that the broker has not let in yet: so many at a time, and how it is seen that one is let in. Pure."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")

#: What the broker answers to one whose password it has not accepted: errors, and this to RESET.
_NOT_YET = (b"-", b"+RESET")
#: An answer longer than this is no error, bytes; its end need not be kept.
_LINE_BYTES = 1024
_NETWORK_BITS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What may be held by those who have not proved themselves."""

    #: connections of all, at a time
    most: int = 400
    #: of one address: a worker opens about six, and the first answer lets each in
    most_of_one: int = 100
    #: from the connection until the broker's password was given, seconds
    patience_s: float = 10.0


class Strangers(Generic[T]):
    """At most so many, and so many of an address: a newcomer takes the place of the one that idled longest."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        #: by address, the oldest first; an address without any is not there
        self._by_address: dict[str, dict[T, None]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._by_address.values()))

    def add(self, stranger: T, address: str) -> T | None:
        """Takes one in; the one that has to go for it."""
        mine = self._by_address.setdefault(source(address), {})
        crowd = mine if len(mine) >= self._limits.most_of_one else None
        if crowd is None and len(self) >= self._limits.most:
            crowd = max(self._by_address.values(), key=len)
        oldest = next(iter(crowd)) if crowd else None
        mine[stranger] = None
        if oldest is not None:
            self.discard(oldest)
        return oldest

    def discard(self, stranger: T) -> None:
        """It was let in, or is gone."""
        for address, some in self._by_address.items():
            if stranger in some:
                del some[stranger]
                if not some:
                    del self._by_address[address]
                return


class Greeting:
    """The broker's answers to one connection, until it accepts a password."""

    def __init__(self) -> None:
        self._rest = b""

    def lets_in(self, data: bytes) -> bool:
        """Whether, with `data`, there is an answer that only those hear who have proved themselves."""
        *lines, rest = (self._rest + data).split(b"\r\n")
        self._rest = rest if len(rest) <= _LINE_BYTES else rest[:1] + rest[-1:]
        return any(not line.startswith(_NOT_YET) for line in lines)


def source(address: str) -> str:
    """What counts as one address: of IPv6 the network, in which a machine may have any number."""
    ip = ipaddress.ip_address(address)
    if ip.version == 4:
        return str(ip)
    bare = address.partition("%")[0]
    return str(ipaddress.ip_network(f"{bare}/{_NETWORK_BITS}", strict=False))
