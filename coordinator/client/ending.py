"""Asks a coordinator to end, and waits until it has."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress

from coordinator.client.whereabouts import Place
from coordinator.control.running import Running
from fleet.errors import FleetError
from fleet.pids import start_time

POLL_S = 0.1


def ask(place: Place, running: Running | None) -> None:
    """By its API; where that does not answer, and it is `running` here, by a signal."""
    from coordinator.client.fleet_client import FleetClient

    try:
        with FleetClient.reach(place) as client:
            client.post("/fleet/down")
    except FleetError:
        if running is None:
            raise
        if start_time(running.pid) == running.started:
            with suppress(ProcessLookupError):
                os.kill(running.pid, signal.SIGTERM)


def await_end(running: Running) -> bool:
    """Waits until the process is gone, for as long as its batches take; True."""
    while start_time(running.pid) == running.started:
        time.sleep(POLL_S)
    return True
