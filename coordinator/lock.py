"""The exclusive lock on a state folder: one process works on it at a time."""

from __future__ import annotations

import fcntl
import os

from fleet.config import StateDir
from fleet.errors import StateLockedError, StorageError


class StateLock:
    """Held from `take` until `release`, or until the process ends however it ends (the kernel drops a flock)."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    @classmethod
    def take(cls, state: StateDir) -> StateLock:
        """Creates the folder and locks it; StateLockedError naming the holder when another process has it."""
        try:
            state.make()
            fd = os.open(state.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StorageError(
                f"the state folder {state.root} cannot be written ({error.strerror}): "
                "make it writable, or give another with --state-dir"
            ) from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(fd, 32, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(fd)
            raise StateLockedError(
                f"another fleet (pid {holder}) works on {state.root}: "
                "wait until it ends, or give another folder with --state-dir"
            ) from error
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        return cls(fd)

    def release(self) -> None:
        """Gives the folder free; twice does no harm."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
