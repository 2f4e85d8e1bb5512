"""How a Mac's power settings bear on long work."""

from __future__ import annotations

import subprocess
import sys

_ASK_S = 5.0


def complaint() -> str:
    """What slows work here and what to do, empty when nothing does; off macOS nobody looks."""
    return judged(_pmset("batt"), _pmset("custom")) if sys.platform == "darwin" else ""


def judged(battery: str, settings: str) -> str:
    """The complaint about what `pmset -g batt` and `pmset -g custom` print."""
    if not battery and not settings:
        return "pmset tells nothing: see that low power mode is off"
    if "'Battery Power'" in battery:
        return "on battery: a worker pauses until power is back"
    on_mains = settings.partition("AC Power:")[2] or settings
    modes = [line.split() for line in on_mains.splitlines()]
    if ["lowpowermode", "1"] in modes or ["powermode", "1"] in modes:
        return "low power mode is on, which slows MLX: turn it off under Battery or Energy in the settings"
    return ""


def _pmset(what: str) -> str:
    try:
        told = subprocess.run(
            ["/usr/bin/pmset", "-g", what], capture_output=True, text=True, timeout=_ASK_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return told.stdout
