"""This machine's worker process, as the coordinator starts and ends it. The wings share no code: it is a command."""

from __future__ import annotations

import os
import subprocess
import sys

from coordinator.broker.broker import Broker
from coordinator.broker.valkey import URL_VARIABLE
from coordinator.control.processes import Processes
from fleet import leash
from fleet.config import StateDir

#: How long a worker told to end may take before it is killed, seconds.
GRACE_S = 5.0
#: Tests put another engine's command here, as a JSON list.
TEST_ENGINE_VARIABLE = "FLEET_TEST_ENGINE"


class LocalWorker:
    """`python -m worker.supervisor` on a leash: it ends when we do."""

    def __init__(
        self,
        state: StateDir,
        processes: Processes,
        broker: Broker,
        worker_id: str,
        *,
        cap: int,
        memory_bytes: int,
        login: str = "",
    ) -> None:
        """`login` is the worker's `user:password`, where the broker has users."""
        self._id = worker_id
        self._broker = broker
        self._log = state.logs / "worker.log"
        self._processes = processes
        self._command = [
            *(sys.executable, "-m", "worker.supervisor"),
            *("--worker-id", worker_id, "--state", str(state.root)),
            *("--cap", str(cap), "--memory", str(memory_bytes)),
        ]
        #: an address with a password in it is told by the environment: a command line is there for all to read
        self._environment = dict(os.environ)
        if login:
            self._environment[URL_VARIABLE] = broker.url_of(login)
            self._command.append("--pause")  # others of the fleet go on meanwhile
        elif not broker.foreign:
            self._command += ["--broker", broker.url]
        if engine := os.environ.get(TEST_ENGINE_VARIABLE):
            self._command += ["--engine-command", engine]
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """Process id, None before the first start."""
        return self._child.pid if self._child else None

    def start(self) -> None:
        """Starts the process, or another one after it ended."""
        self._broker.expect(self._id)
        with self._log.open("ab") as log:
            self._child = leash.start(self._command, log=log, env=self._environment)
        self._processes.record(self._child.pid, "worker")

    def alive(self) -> bool:
        """True while the process runs."""
        return self._child is not None and self._child.poll() is None

    def kill(self) -> None:
        """Ends it at once, and waits until it is gone."""
        if self._child is not None:
            self._child.kill()
            self.stop()

    def stop(self) -> None:
        """Ends it, gently first."""
        if self._child is not None:
            leash.end(self._child, GRACE_S)
            self._processes.end_role("engine")  # it has usually ended with its link
