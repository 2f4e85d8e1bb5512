"""What a running `fleet up` leaves in its state folder, so that commands on the same Mac find it."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path

from fleet import private
from fleet.config import StateDir
from fleet.pids import start_time


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A coordinator that runs."""

    pid: int
    #: when it started, see `fleet.pids.Started`
    started: str
    #: port of the API for other Macs, over TLS
    port: int
    #: of the API in plain HTTP, on loopback alone
    plain_port: int
    #: as `fleet token` shows it
    token: str = field(repr=False)

    @classmethod
    def here(cls, *, port: int, plain_port: int, token: str) -> Running:
        """This process."""
        return cls(
            pid=os.getpid(), started=start_time(os.getpid()) or "", port=port, plain_port=plain_port, token=token
        )

    def keep(self, state: StateDir) -> None:
        """Writes it, for its owner alone."""
        private.write(_path(state), json.dumps(asdict(self)))

    def with_token(self, token: str) -> Running:
        """The same, after the token was rotated."""
        return replace(self, token=token)

    @classmethod
    def of(cls, state: StateDir) -> Running | None:
        """The coordinator that works on the state folder; None when there is none, or it ended without a word."""
        try:
            values = json.loads(private.read(_path(state)) or "{}")
            found = cls(**{name.name: values[name.name] for name in fields(cls)})
        except (ValueError, TypeError, KeyError):
            return None
        return found if start_time(found.pid) == found.started else None

    @staticmethod
    def forget(state: StateDir) -> None:
        """Removes it."""
        _path(state).unlink(missing_ok=True)


def _path(state: StateDir) -> Path:
    return state.root / "up.json"
