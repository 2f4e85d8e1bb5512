"""Who this Mac is to its fleets: a UUID made once and kept. Names are for people."""

from __future__ import annotations

import hashlib
import json
import re
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field

from fleet import private
from fleet.config import StateDir
from fleet.errors import StorageError
from worker.machine import serial

_HEX_32 = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Told to a coordinator alone: whoever knows the whole of it can come as this Mac."""

    #: 32 hex digits
    uuid: str = field(repr=False)

    @property
    def wid(self) -> str:
        """The worker's id, for all to see."""
        return self.uuid[:12]

    @classmethod
    def of(cls, state: StateDir, machine: Callable[[], str] = serial) -> Identity:
        """The state folder's; made when it has none, or one that was copied from another Mac. StorageError when it is
        damaged."""
        path = state.root / "identity.json"
        text, here = private.read(path), _hashed(machine())
        if text is not None:
            try:
                found = json.loads(text)
                known, where = found["uuid"], found["machine"]
            except (ValueError, TypeError, KeyError):
                known, where = "", ""
            if not isinstance(known, str) or not _HEX_32.fullmatch(known):
                raise StorageError(f"{path} is damaged: remove it, and this Mac joins as a new one")
            if where == here or "" in (where, here):
                return cls(uuid=known)
        made = cls(uuid=uuid.uuid4().hex)
        private.write(path, json.dumps({"uuid": made.uuid, "machine": here}))
        return made


def _hashed(serial_number: str) -> str:
    """Tells machines apart without telling which; empty for one that does not say."""
    return hashlib.sha256(serial_number.encode()).hexdigest() if serial_number else ""
