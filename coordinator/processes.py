"""The processes we started, on disk, so that the next start can end those a kill -9 left behind, and no other."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from fleet.config import StateDir

#: How long a stale process may take over SIGTERM before SIGKILL, seconds.
GRACE_S = 3.0
_POLL_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """A process we started. A pid is used again by strangers; together with its start time it is one process."""

    pid: int
    #: when it started, in words of the system that compare only for equality
    started: str
    #: broker, worker, ...
    role: str


class Processes:
    """The `pids` file of a state folder. Only the holder of the folder's lock uses it."""

    def __init__(self, state: StateDir) -> None:
        self._path = state.pids

    def record(self, pid: int, role: str) -> None:
        """Remembers `pid` as ours; one that is already gone is not worth a line."""
        started = start_time(pid)
        if started is None:
            return
        line = json.dumps(asdict(Started(pid=pid, started=started, role=role)))
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with self._path.open("a") as file:
            file.write(line + "\n")

    def clear(self) -> list[Started]:
        """Ends every recorded process that still runs and forgets all; those it ended."""
        stale = [process for process in read(self._path) if _runs(process)]
        _end(stale)
        self._path.unlink(missing_ok=True)
        return stale

    def end(self, pid: int) -> None:
        """Ends `pid` if it is a process recorded here that still runs."""
        _end([process for process in read(self._path) if process.pid == pid and _runs(process)])


def read(path: Path) -> list[Started]:
    """The records in `path`; lines cut by a crash are passed over."""
    try:
        lines = path.read_text().splitlines()
    except FileNotFoundError:
        return []
    records = []
    for line in lines:
        try:
            fields = json.loads(line)
            records.append(Started(pid=int(fields["pid"]), started=str(fields["started"]), role=str(fields["role"])))
        except (ValueError, KeyError, TypeError):
            continue
    return records


def start_time(pid: int) -> str | None:
    """When process `pid` started, None when there is no such process (a zombie is none)."""
    return _start_time_proc(pid) if sys.platform == "linux" else _start_time_ps(pid)


def _start_time_proc(pid: int) -> str | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()  # the name before may hold spaces and parentheses
    return None if fields[0] in "ZX" else f"{boot} {fields[19]}"


def _start_time_ps(pid: int) -> str | None:
    environment = {**os.environ, "LC_ALL": "C", "TZ": "UTC"}
    command = ["ps", "-o", "state=,lstart=", "-p", str(pid)]
    reply = subprocess.run(command, capture_output=True, text=True, env=environment, check=False).stdout.strip()
    state, _, started = reply.partition(" ")
    return None if not started or state.startswith("Z") else started.strip()


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
