"""What coordinators and workers say of themselves over multicast DNS: hints for finding, never proof, never liveness.

Anybody on the network can say anything there, so what is read is bounded and stripped of control characters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

#: Service types, with a dot at the end as DNS has it.
COORDINATOR = "_mlxfleet._tcp.local."
WORKER = "_mlxfleetw._tcp.local."
#: How long others may believe it, seconds. DNS-SD would have 75 minutes; a Mac that was switched off is to vanish soon.
TTL_S = 120

#: A worker that runs and has not joined, and one that has.
PRESENT = "present"
JOINED = "joined"

#: Hex digits of a certificate's fingerprint by which a worker says which fleet it wants.
WANTED_DIGITS = 16
_NAME_BYTES = 40  # of a DNS label's 63: an id follows, and digits where an id is there twice
_ID_DIGITS = 12
_VALUE_BYTES = 200  # of 255, key and sign included
_KEYS = ("name", "api", "fp", "wid", "chip", "mem", "state", "fleet")


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorCard:
    """A coordinator's."""

    #: as its owner named it; two may have the same
    name: str
    #: port of the HTTPS API
    api_port: int
    #: sha256 of the certificate, hex
    fingerprint: str

    def text(self) -> dict[str, str]:
        """As TXT fields."""
        return _bounded({"name": self.name, "api": str(self.api_port), "fp": self.fingerprint})

    @classmethod
    def read(cls, text: Mapping[bytes, bytes | None]) -> CoordinatorCard:
        """From TXT fields; what is missing or nonsense is empty."""
        fields = _fields(text)
        return cls(name=fields["name"], api_port=_number(fields["api"], most=65535), fingerprint=fields["fp"].lower())


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerCard:
    """A worker's."""

    #: as its owner named it; two may have the same
    name: str
    #: its id, 12 hex digits
    wid: str
    chip: str
    #: memory of the machine, bytes
    memory_bytes: int
    #: PRESENT or JOINED
    state: str
    #: first digits of the fingerprint of the fleet it wants to join, empty when it has no token
    fleet: str

    def text(self) -> dict[str, str]:
        """As TXT fields."""
        return _bounded(
            {
                "name": self.name,
                "wid": self.wid,
                "chip": self.chip,
                "mem": str(self.memory_bytes),
                "state": self.state,
                "fleet": self.fleet,
            }
        )

    @classmethod
    def read(cls, text: Mapping[bytes, bytes | None]) -> WorkerCard:
        """From TXT fields; what is missing or nonsense is empty."""
        fields = _fields(text)
        return cls(
            name=fields["name"],
            wid=fields["wid"],
            chip=fields["chip"],
            memory_bytes=_number(fields["mem"], most=1 << 50),
            state=fields["state"],
            fleet=fields["fleet"].lower(),
        )


def instance(name: str, identity: str, service: str) -> str:
    """The full name of a service: of a name alone there may be two, and those that start together do not notice."""
    label = plain(name).encode()[:_NAME_BYTES].decode(errors="ignore").strip(" .")
    return f"{label} {identity[:_ID_DIGITS]}.{service}"


def distinct(names: Sequence[str]) -> list[str]:
    """The same names, of which a second one of a kind has `-2` behind it, and so on."""
    told: list[str] = []
    for name in names:
        number = 1
        while (wanted := name if number == 1 else f"{name}-{number}") in told:
            number += 1
        told.append(wanted)
    return told


def plain(text: str) -> str:
    """Without control characters, which a terminal would obey, and not endless."""
    return "".join(char for char in text if char.isprintable())[:_VALUE_BYTES]


def _bounded(fields: Mapping[str, str]) -> dict[str, str]:
    return {key: plain(value).encode()[:_VALUE_BYTES].decode(errors="ignore") for key, value in fields.items()}


def _fields(text: Mapping[bytes, bytes | None]) -> dict[str, str]:
    return {key: plain((text.get(key.encode()) or b"").decode(errors="replace")) for key in _KEYS}


def _number(text: str, *, most: int) -> int:
    return min(int(text), most) if text.isascii() and text.isdigit() else 0
