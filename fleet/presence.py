"""What coordinators and workers say of themselves over multicast DNS: hints for finding, never proof, never liveness.

Anybody on the network can say anything there, so what is read is bounded and stripped of control characters.
"""

from __future__ import annotations

from collections.abc import Mapping
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
_LABEL_BYTES = 56  # of 63: what resolves a conflict of names adds digits
_VALUE_BYTES = 200  # of 255, key and sign included
_KEYS = ("api", "fp", "wid", "chip", "mem", "state", "fleet")


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorCard:
    """A coordinator's."""

    #: port of the HTTPS API
    api_port: int
    #: sha256 of the certificate, hex
    fingerprint: str

    def text(self) -> dict[str, str]:
        """As TXT fields."""
        return _bounded({"api": str(self.api_port), "fp": self.fingerprint})

    @classmethod
    def read(cls, text: Mapping[bytes, bytes | None]) -> CoordinatorCard:
        """From TXT fields; what is missing or nonsense is empty."""
        fields = _fields(text)
        return cls(api_port=_number(fields["api"], most=65535), fingerprint=fields["fp"].lower())


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerCard:
    """A worker's."""

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
            wid=fields["wid"],
            chip=fields["chip"],
            memory_bytes=_number(fields["mem"], most=1 << 50),
            state=fields["state"],
            fleet=fields["fleet"].lower(),
        )


def instance(name: str, service: str) -> str:
    """The full name of `name` under a service type, cut to what a DNS label holds."""
    label = plain(name).encode()[:_LABEL_BYTES].decode(errors="ignore").strip(" .")
    return f"{label or 'mac'}.{service}"


def label(full: str, service: str) -> str:
    """The name in a full name, as a person may see it."""
    return plain(full.removesuffix(f".{service}"))


def plain(text: str) -> str:
    """Without control characters, which a terminal would obey, and not endless."""
    return "".join(char for char in text if char.isprintable())[:_VALUE_BYTES]


def _bounded(fields: Mapping[str, str]) -> dict[str, str]:
    return {key: plain(value).encode()[:_VALUE_BYTES].decode(errors="ignore") for key, value in fields.items()}


def _fields(text: Mapping[bytes, bytes | None]) -> dict[str, str]:
    return {key: plain((text.get(key.encode()) or b"").decode(errors="replace")) for key in _KEYS}


def _number(text: str, *, most: int) -> int:
    return min(int(text), most) if text.isascii() and text.isdigit() else 0
