"""Where a coordinator's gate is: `host:port`, `host`, `[IPv6]:port`, `[IPv6%interface]:port`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from fleet.errors import UsageError

#: The gate's port where nothing says otherwise; the API's is the next one.
PORT = 7633
_FORM = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.]+(?:%[\w.-]+)?)\]|(?P<host>[\w.-]+))(?::(?P<port>\d{1,5}))?")


@dataclass(frozen=True, slots=True, order=True)
class Address:
    """One way to a coordinator."""

    #: name, IPv4, or IPv6 without brackets but with its interface (`fe80::1%en0`)
    host: str
    #: of the gate
    port: int = PORT

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @classmethod
    def parse(cls, text: str) -> Address:
        """The address in `text`; UsageError when it is none."""
        text = text.strip()
        if text.count(":") > 1 and not text.startswith("["):
            text = f"[{text}]"  # an IPv6 address as people write it
        found = _FORM.fullmatch(text)
        port = int(found["port"] or PORT) if found else 0
        if found is None or not 0 < port < 1 << 16:
            raise UsageError("expected the coordinator's address as HOST, HOST:PORT or [IPv6]:PORT")
        return cls(found["v6"] or found["host"], port)
