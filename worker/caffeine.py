"""Keeps macOS awake while this process works. The display may sleep."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager


def command(pid: int, system: str = sys.platform) -> Sequence[str]:
    """Keeps the system awake until process `pid` ends, also on mains only (-s); empty where there is no such thing."""
    return ["/usr/bin/caffeinate", "-is", "-w", str(pid)] if system == "darwin" else []


@contextmanager
def awake(words: Sequence[str] | None = None) -> Iterator[None]:
    """The machine does not sleep of itself inside; nothing where that cannot be had."""
    words = command(os.getpid()) if words is None else words
    try:
        child = subprocess.Popen(words, stdin=subprocess.DEVNULL) if words else None
    except OSError:
        child = None
    try:
        yield
    finally:
        if child is not None:
            child.terminate()
            child.wait()
