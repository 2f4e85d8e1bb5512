"""Connections that the broker has not let in yet: so many at a time, and how it is seen that one is let in. Pure."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")

#: How a login begins, as client libraries write it, in at most so many bytes.
_LOGIN = re.compile(rb"\*[2-9]\r\n\$(?:4\r\nAUTH|5\r\nHELLO)\r\n", re.IGNORECASE)
_BEGINNING_BYTES = 15
#: How the broker's answer to one begins when it has accepted a password: OK to AUTH, a map or array to HELLO. Without a
#: password it answers both with errors; other commands are not judged by answers, since QUIT has its OK as well.
_ACCEPTED = (b"+", b"%", b"*")
#: More than a stranger has to say: a worker's HELLO with its password has 90 bytes.
LOGIN_BYTES = 512
_NETWORK_BITS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What may be held by those who have not proved themselves, and by those who have."""

    #: connections of all, at a time; each costs 0.1 MB, and 0.3 MB while its first message is as long as TLS allows
    most: int = 400
    #: of one address: a worker opens about six, and the first answer lets each in
    most_of_one: int = 100
    #: from the connection until the broker's password was given, seconds
    patience_s: float = 10.0
    #: connections of those that were let in, at a time
    most_let_in: int = 2000


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


class Login:
    """What a connection says and is answered first: a login that the broker accepts, or its end."""

    def __init__(self) -> None:
        self._begun = b""
        self._bytes = 0

    def say(self, data: bytes) -> bytes | None:
        """What the broker may hear by now; None when this is no login, or more than one."""
        self._bytes += len(data)
        if self._bytes > LOGIN_BYTES:
            return None
        if self._begins:
            return data
        self._begun += data
        if self._begins:
            return self._begun
        return b"" if len(self._begun) < _BEGINNING_BYTES else None

    def accepted(self, answer: bytes) -> bool:
        """Whether this, the broker's first answer, is one that only those hear who have proved themselves."""
        return self._begins and answer.startswith(_ACCEPTED)

    @property
    def _begins(self) -> bool:
        return _LOGIN.match(self._begun) is not None


def source(address: str) -> str:
    """What counts as one address: of IPv6 the network, in which a machine may have any number."""
    ip = ipaddress.ip_address(address)
    if ip.version == 4:
        return str(ip)
    bare = address.partition("%")[0]
    return str(ipaddress.ip_network(f"{bare}/{_NETWORK_BITS}", strict=False))
