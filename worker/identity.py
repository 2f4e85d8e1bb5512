"""Who this Mac is to its fleets: a UUID made once and kept. Names are for people."""

from __future__ import annotations

import json
import re
import uuid
from dataclasses import dataclass, field

from fleet import private
from fleet.config import StateDir
from fleet.errors import StorageError

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
    def of(cls, state: StateDir) -> Identity:
        """The state folder's; made when it has none. StorageError when it is damaged."""
        path = state.root / "identity.json"
        text = private.read(path)
        if text is None:
            made = cls(uuid=uuid.uuid4().hex)
            private.write(path, json.dumps({"uuid": made.uuid}))
            return made
        try:
            found = json.loads(text)["uuid"]
        except (ValueError, TypeError, KeyError):
            found = None
        if not isinstance(found, str) or not _HEX_32.fullmatch(found):
            raise StorageError(f"{path} is damaged: remove it, and this Mac joins as a new one")
        return cls(uuid=found)
