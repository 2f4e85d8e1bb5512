"""A Mac at work for its fleet: the supervisor, with the road to the coordinator and the pauses of a person's Mac."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from fleet.address import Address
from fleet.config import StateDir
from fleet.credentials import Credentials
from fleet.errors import StorageError
from worker import finding
from worker.blas import engine_environment
from worker.engine_process import Launch, default_command
from worker.heartbeat import Listener
from worker.machine import host
from worker.pauses import conditions
from worker.road import Road
from worker.seat import home
from worker.supervisor import Supervisor

log = logging.getLogger(__name__)

#: Tests put another engine's command here, as a JSON list.
TEST_ENGINE_VARIABLE = "FLEET_TEST_ENGINE"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkOptions:
    """How a Mac works for its fleet."""

    #: rows decoding together at most, 0 for the engine's own choice
    cap: int = 0
    #: bytes the engine may use, 0 for its own choice
    memory_bytes: int = 0
    #: works on battery too
    on_battery: bool = False


def joined_worker(state: StateDir, credentials: Credentials, options: WorkOptions, listener: Listener) -> Supervisor:
    """The supervisor of a Mac that was let in."""
    fingerprint = credentials.parsed.fingerprint
    road = Road(
        credentials.certificate,
        credentials.places,
        search=partial(finding.search_quietly, fingerprint),
        arrived=partial(_keep_addresses, state, credentials),
    )
    return Supervisor(
        partial(road.client, credentials.user, credentials.password),
        credentials.user,
        _launch(state, options.memory_bytes),
        cap=options.cap,
        host=host(credentials.name),
        listener=listener,
        look=partial(conditions, state.root),
        works_on_battery=options.on_battery,
    )


def _launch(state: StateDir, memory_bytes: int) -> Launch:
    place = home(state)
    command: Sequence[str] = default_command(sys.executable)
    if told := os.environ.get(TEST_ENGINE_VARIABLE):
        command = json.loads(told)
    return Launch(
        command=tuple(command),
        log=place.logs / "engine.log",
        key_log=place.logs / "engine.keys",
        hash_cache=state.root / "hashes.json",
        knees=state.knees,
        pids=place.pids,
        memory_bytes=memory_bytes,
        environment=engine_environment,
    )


def _keep_addresses(state: StateDir, credentials: Credentials, addresses: Sequence[Address]) -> None:
    """Remembers where the coordinator was last."""
    try:
        replace(credentials, addresses=tuple(map(str, addresses))).keep(state)
    except StorageError as error:
        log.warning("%s", error)
