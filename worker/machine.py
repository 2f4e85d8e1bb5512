"""This machine, as far as it decides how fast a model runs. Imports no mlx."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

#: How long macOS may take to name its chip, seconds.
_ASK_S = 5.0


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
    name = _mac_chip() if sys.platform == "darwin" else linux_chip(_read(Path("/proc/cpuinfo")))
    return name or platform.machine()


def linux_chip(cpuinfo: str) -> str:
    """The first model name in /proc/cpuinfo; empty on most ARM machines."""
    for line in cpuinfo.splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return ""


def _mac_chip() -> str:
    try:
        told = subprocess.run(
            ["/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string"],
            capture_output=True,
            text=True,
            timeout=_ASK_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return told.stdout.strip()


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
