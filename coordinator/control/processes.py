"""The processes we started, on disk, so that the next start can end those a kill -9 left behind, and no other."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Sequence

from fleet.config import StateDir
from fleet.pids import Started, read, record, start_time

#: How long a stale process may take over SIGTERM before SIGKILL, seconds.
GRACE_S = 3.0
_POLL_S = 0.05


class Processes:
    """The `pids` file of a state folder. Only the holder of the folder's lock uses it."""

    def __init__(self, state: StateDir) -> None:
        self._path = state.pids

    def record(self, pid: int, role: str) -> None:
        """Remembers `pid` as ours; one that is already gone is not worth a line."""
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        record(self._path, pid, role)

    def clear(self) -> list[Started]:
        """Ends every recorded process that still runs and forgets all; those it ended."""
        stale = [process for process in read(self._path) if _runs(process)]
        _end(stale)
        self._path.unlink(missing_ok=True)
        return stale

    def end(self, pid: int) -> None:
        """Ends `pid` if it is a process recorded here that still runs."""
        _end([process for process in read(self._path) if process.pid == pid and _runs(process)])

    def end_role(self, role: str) -> None:
        """Ends the recorded processes of a role that still run."""
        _end([process for process in read(self._path) if process.role == role and _runs(process)])


def _end(processes: Sequence[Started]) -> None:
    for process in processes:
        _signal(process, signal.SIGTERM)
    deadline = time.monotonic() + GRACE_S
    for process in processes:
        while _runs(process) and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        if _runs(process):
            _signal(process, signal.SIGKILL)


def _runs(process: Started) -> bool:
    return start_time(process.pid) == process.started


def _signal(process: Started, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(process.pid, number)
