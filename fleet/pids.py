"""A file of processes we started: a line of JSON each, appended by whoever starts one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """A process we started. A pid is used again by strangers; together with its start time it is one process."""

    pid: int
    #: when it started, in words of the system that compare only for equality
    started: str
    #: broker, worker or engine
    role: str


def record(path: Path, pid: int, role: str) -> None:
    """Appends `pid`; one that is already gone is not worth a line."""
    started = start_time(pid)
    if started is None:
        return
    line = json.dumps(asdict(Started(pid=pid, started=started, role=role)))
    with path.open("a") as file:
        file.write(line + "\n")


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
