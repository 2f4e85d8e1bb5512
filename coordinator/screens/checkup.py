"""What `fleet doctor` looks at: things that would otherwise be found out late. Each check ends in a finding."""

from __future__ import annotations

import errno
import json
import os
import platform
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from coordinator.broker.broker import Broker
from coordinator.broker.dispatch import Dispatch
from coordinator.control.processes import Processes
from coordinator.control.running import Running
from coordinator.screens import filesystems, power
from fleet.address import PORT
from fleet.config import StateDir
from fleet.errors import FleetError

#: Least free disk for a job of any size, and for one that runs a night, bytes.
FEW_BYTES, ENOUGH_BYTES = 1 << 30, 10 << 30
#: A machine that boots without the time shows one before this: mlx-fleet is younger.
EARLIEST_S = 1_750_000_000
#: Ports of a `fleet up`: the gate's, then the API's with TLS and in plain HTTP.
PORTS = 3
MDNS = ("224.0.0.251", 5353)
#: A query that asks nothing.
_QUERY = bytes(12)
#: MLX may take so long to load from a cold disk, seconds.
_MLX_S = 120.0
_ASK_MLX = """
import importlib.metadata as packages, json, mlx.core as mx, sys
maps = open("/proc/self/maps").read() if sys.platform == "linux" else ""
mx.eval(mx.ones(8) + 1)
device = "CPU" if mx.default_device() == mx.Device(mx.cpu) else "GPU"
print(json.dumps([packages.version("mlx"), packages.version("mlx-lm"), device, "openblas" in maps]))
"""


class Level(StrEnum):
    """How bad a finding is."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The outcome of a check."""

    name: str
    level: Level
    #: what was found and, where it is not well, what to do
    said: str


def findings(state: StateDir) -> Iterator[Finding]:
    """Every check, as it is done."""
    checks: tuple[tuple[str, Callable[[], tuple[Level, str]]], ...] = (
        ("python", lambda: python(sys.platform, platform.machine(), platform.python_version())),
        ("mlx", mlx),
        ("broker", broker),
        ("folder", lambda: folder(state)),
        ("disk", lambda: disk(shutil.disk_usage(existing(state.root)).free)),
        ("ports", lambda: ports(state)),
        ("discovery", discovery),
        ("clock", lambda: clock(time.time())),
        ("power", power_settings),
    )
    for name, check in checks:
        level, said = check()
        yield Finding(name=name, level=level, said=said)


def python(system: str, machine: str, version: str) -> tuple[Level, str]:
    """Whether MLX has a build for this Python."""
    said = f"{version} for {machine}"
    if system == "darwin" and machine != "arm64":
        return Level.FAILED, f"{said}: MLX needs a Python for arm64; this one runs under Rosetta, install another"
    if (system, machine) not in (("darwin", "arm64"), ("linux", "x86_64")):
        return Level.WARNING, f"{said} on {system}: mlx-fleet is made for Apple silicon and tested on Linux x86_64"
    return Level.OK, said


def mlx() -> tuple[Level, str]:
    """Whether an engine could start, in a process as an engine's."""
    command = [sys.executable, "-m", "worker.blas", sys.executable, "-c", _ASK_MLX]
    try:
        asked = subprocess.run(command, capture_output=True, text=True, timeout=_MLX_S, check=True)
        return judge_mlx(sys.platform, *json.loads(asked.stdout))
    except subprocess.CalledProcessError as error:
        last = (error.stderr or "").strip().rpartition("\n")[2] or f"exit {error.returncode}"
        return Level.FAILED, f"MLX does not load ({last}): install mlx-fleet again, in a fresh environment"
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        return Level.FAILED, f"MLX does not load ({type(error).__name__}): install mlx-fleet again"


def judge_mlx(system: str, version: str, lm_version: str, device: str, openblas: bool) -> tuple[Level, str]:
    """Whether MLX computes on what it should."""
    said = f"MLX {version} on the {device}, mlx-lm {lm_version}"
    if system == "darwin" and device == "CPU":
        return Level.WARNING, f"{said}: no GPU is used, which is many times slower; is this a virtual machine?"
    if system == "linux" and device == "CPU" and not openblas:
        return Level.WARNING, f"{said}, with the slow BLAS of its wheel: pip install cmeel-openblas"
    return Level.OK, said + (", OpenBLAS" if openblas else "")


def broker() -> tuple[Level, str]:
    """Whether a broker starts and answers; the one of a person's own is only asked."""
    with tempfile.TemporaryDirectory(prefix="fleet-doctor-") as name:
        state = StateDir(Path(name))
        state.make()
        tried = Broker(state, Processes(state))
        try:
            if not tried.foreign:
                tried.start()
            with closing(Dispatch(tried.url)) as dispatch:
                dispatch.epoch()
        except FleetError as error:
            return Level.FAILED, str(error)
        finally:
            if not tried.foreign:
                tried.stop()
    return Level.OK, "a Redis of your own answers" if tried.foreign else "starts and answers"


def folder(state: StateDir) -> tuple[Level, str]:
    """Whether the record is safe in the state folder."""
    place = existing(state.root)
    if not os.access(place, os.W_OK):
        return Level.FAILED, f"{place} cannot be written: change its permissions, or give another with --state-dir"
    kind = filesystems.of(place)
    if kind in filesystems.REMOTE or "Mobile Documents" in place.parts:
        why = f"{state.root} lies on {kind or 'iCloud Drive'}, where a database can be damaged"
        return Level.FAILED, f"{why}: give a folder on a disk of this machine with --state-dir"
    return Level.OK, str(state.root) + (f" on {kind}" if kind else "")


def disk(free_bytes: int) -> tuple[Level, str]:
    """Whether there is room."""
    said = f"{free_bytes / 1e9:,.1f} GB free"
    if free_bytes < FEW_BYTES:
        return Level.FAILED, f"{said}: free some, or give a folder on another disk with --state-dir"
    if free_bytes < ENOUGH_BYTES:
        return Level.WARNING, f"{said}: enough for small jobs; the record of a job takes about 3 times its input"
    return Level.OK, said


def ports(state: StateDir) -> tuple[Level, str]:
    """Whether `fleet up` could listen."""
    if Running.of(state) is not None:
        return Level.OK, "a `fleet up` of this folder uses them"
    taken = [port for port in range(PORT, PORT + PORTS) if not _is_free(port)]
    if taken:
        used = " and ".join(map(str, taken))
        return Level.WARNING, f"{used} in use by another program: give `fleet up` another with --port"
    return Level.OK, f"{PORT} to {PORT + PORTS - 1} are free"


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


def discovery() -> tuple[Level, str]:
    """Whether Macs can find each other: sends a query that asks nothing to the multicast group."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            group = socket.inet_aton(MDNS[0]) + socket.inet_aton("0.0.0.0")
            probe.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, group)
            probe.sendto(_QUERY, MDNS)
    except OSError as error:
        return judge_discovery(sys.platform, error.errno or 0, error.strerror or "")
    return Level.OK, "multicast can be sent"


def judge_discovery(system: str, number: int, text: str) -> tuple[Level, str]:
    """What a failure to send multicast means."""
    if system == "darwin" and number == errno.EHOSTUNREACH:
        why = "macOS keeps this program from the local network"
        return Level.FAILED, f"{why}: allow your terminal under Privacy & Security > Local Network"
    return Level.WARNING, f"multicast cannot be sent ({text}): name the coordinator with --coordinator HOST:PORT"


def clock(now: float) -> tuple[Level, str]:
    """Whether certificates and ages make sense."""
    said = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(now))
    if now < EARLIEST_S:
        return Level.FAILED, f"{said} is in the past: set the clock, or let the system set it from the network"
    return Level.OK, said


def power_settings() -> tuple[Level, str]:
    """Whether a Mac's power settings slow it."""
    complaint = power.complaint()
    return (Level.WARNING, complaint) if complaint else (Level.OK, "nothing slows this machine")


def existing(path: Path) -> Path:
    """`path`, or the nearest folder above it that is there."""
    path = path.absolute()
    return next((place for place in (path, *path.parents) if place.exists()), path)
