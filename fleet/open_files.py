"""How many files and connections this process may have open."""

from __future__ import annotations

import resource


def allow(wanted: int) -> None:
    """Asks for at least so many, or for as many as the system gives: macOS lets a process open 256 unless it asks."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
