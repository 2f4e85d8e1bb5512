"""Where another process of this machine finds the broker of a state folder."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import quote

from coordinator.broker.traces import TraceBook
from coordinator.broker.valkey import URL_VARIABLE
from fleet.config import StateDir

NAME = "broker.sock"


def find_broker(state: StateDir) -> str | None:
    """Its address, None when there is none; a killed run leaves a socket behind at which nobody answers."""
    if foreign := os.environ.get(URL_VARIABLE):
        return foreign
    short = TraceBook(state).read().folder
    for folder in [state.root.resolve() / "run", *([Path(short)] if short else [])]:
        if (folder / NAME).is_socket():
            return f"unix://{quote(str(folder / NAME))}"
    return None
