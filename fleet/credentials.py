"""What a Mac keeps of the fleet it belongs to, so that the next command needs neither token nor address."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from fleet import private, token
from fleet.address import Address
from fleet.config import StateDir
from fleet.errors import FleetError, StorageError
from fleet.token import Token

#: Code of the API's answer to the key of a Mac that was kicked.
REMOVED = "removed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """Written by `fleet join`; read by it and by every command that asks the coordinator."""

    #: as `fleet token` shows it
    token: str = field(repr=False)
    #: the coordinator's certificate, PEM; no other is trusted
    certificate: str
    #: of the gate, `host:port`, the last good one first
    addresses: tuple[str, ...]
    #: port of the API at the same hosts
    api_port: int
    #: the coordinator's name
    coordinator: str
    #: this Mac's name in the fleet
    name: str = ""
    #: user of the broker, which is the worker's id
    user: str = ""
    password: str = field(default="", repr=False)

    @property
    def parsed(self) -> Token:
        """The token; UsageError when the file was spoilt."""
        return token.parse(self.token)[0]

    @property
    def key(self) -> str:
        """Opens the API: this Mac's own key, which ends when it is kicked; before it joined the token's."""
        return own_key(self.user, self.password) if self.user else self.parsed.key

    @property
    def places(self) -> list[Address]:
        """The addresses; UsageError when the file was spoilt."""
        return [Address.parse(text) for text in self.addresses]

    def keep(self, state: StateDir) -> None:
        """Writes them into the state folder, for its owner alone."""
        private.write(_path(state), json.dumps(asdict(self), indent=1))

    @classmethod
    def kept(cls, state: StateDir) -> Credentials | None:
        """Those of the state folder, None when it has none; StorageError when they cannot be understood."""
        text = private.read(_path(state))
        if text is None:
            return None
        try:
            values = json.loads(text)
            found = cls(**{name: _plain(values[name]) for name in (f.name for f in fields(cls)) if name in values})
            _ = found.parsed, found.places
        except (ValueError, TypeError, FleetError) as error:
            raise StorageError(f"{_path(state)} is damaged: remove it and join again with the token") from error
        return found

    @staticmethod
    def forget(state: StateDir) -> bool:
        """Removes them; False when there were none."""
        try:
            _path(state).unlink()
        except FileNotFoundError:
            return False
        return True


def own_key(user: str, password: str) -> str:
    """The API's key of one worker."""
    return f"{user}.{password}"


def _plain(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _path(state: StateDir) -> Any:
    return state.root / "fleet.json"
