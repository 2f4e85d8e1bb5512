"""This machine: its name for people, its memory, and what decides how fast a model runs. Imports no mlx."""

from __future__ import annotations

import os
import platform
import re
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from fleet import __version__
from fleet.messages import Host

#: How long macOS may take to answer a question about itself, seconds.
_ASK_S = 5.0


def host(name: str = "") -> Host:
    """What this machine is to the fleet; `name` is a person's choice for it."""
    return Host(name=name or own_name(), chip=chip(), memory_bytes=memory_bytes(), version=__version__)


def own_name() -> str:
    """As its owner named it."""
    named = ask(["/usr/sbin/scutil", "--get", "ComputerName"]) if sys.platform == "darwin" else ""
    return named or socket.gethostname().partition(".")[0] or "mac"


def memory_bytes() -> int:
    """Of the whole machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def describe(device: str, env: Mapping[str, str]) -> str:
    """Chip, cores and what MLX computes on (`device`), in one line; equal lines mean equal speed."""
    blas = "OpenBLAS" if "openblas" in env.get("LD_PRELOAD", "") else ""
    threads = env.get("OPENBLAS_NUM_THREADS", "") or env.get("OMP_NUM_THREADS", "")
    name = chip()
    parts = [
        name,
        f"{os.cpu_count()} cores",
        device.replace(name, "").strip(),
        blas,
        f"{threads} threads" if blas and threads else "",
    ]
    return ", ".join(part for part in parts if part)


def chip() -> str:
    """The processor's name, or its architecture where it has none."""
    if sys.platform == "darwin":
        name = ask(["/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string"])
    else:
        name = linux_chip(read(Path("/proc/cpuinfo")))
    return name or platform.machine()


def linux_chip(cpuinfo: str) -> str:
    """The first model name in /proc/cpuinfo; empty on most ARM machines."""
    for line in cpuinfo.splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return ""


def serial() -> str:
    """What tells this machine from every other, also from one that its disk was copied to; empty where nothing does."""
    if sys.platform == "darwin":
        return platform_uuid(ask(["/usr/sbin/ioreg", "-rd1", "-c", "IOPlatformExpertDevice"]))
    return read(Path("/etc/machine-id")).strip()


def platform_uuid(ioreg: str) -> str:
    """The hardware's UUID in what `ioreg` says."""
    found = re.search(r'"IOPlatformUUID" = "([0-9A-Fa-f-]+)"', ioreg)
    return found[1] if found else ""


def ask(command: Sequence[str]) -> str:
    """What a program of the system says, empty when it fails or is not there."""
    try:
        told = subprocess.run(command, capture_output=True, text=True, timeout=_ASK_S, check=True, errors="replace")
    except (OSError, subprocess.SubprocessError):
        return ""
    return told.stdout.strip()


def read(path: Path) -> str:
    """A file of the system, empty when it cannot be read."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
