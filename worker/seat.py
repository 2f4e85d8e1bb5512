"""The one `fleet join` of a state folder: who it is, and how to end it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal

from fleet import pids
from fleet.config import StateDir
from fleet.errors import StateLockedError, StorageError

#: Its own line in the file of processes; the others are its engines.
ROLE = "join"


def home(state: StateDir) -> StateDir:
    """Where a joined worker keeps its logs and processes, apart from a coordinator of the same state folder."""
    return StateDir(state.root / "worker")


class Seat:
    """Taken until `release`, or until the process ends however it ends."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    @classmethod
    def take(cls, place: StateDir) -> Seat:
        """StateLockedError when another process has it. Engines that a killed one left behind are ended."""
        place.root.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        place.make()
        try:
            fd = os.open(place.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StorageError(f"{place.lock} cannot be opened ({error.strerror}): make its folder yours") from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(fd)
            raise StateLockedError(
                "this Mac has joined already, in another `fleet join`: `fleet leave` ends it"
            ) from error
        for left in pids.read(place.pids):
            if left.role != ROLE and pids.start_time(left.pid) == left.started:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(left.pid, signal.SIGKILL)
        place.pids.unlink(missing_ok=True)
        pids.record(place.pids, os.getpid(), ROLE)
        return cls(fd)

    @staticmethod
    def holder(place: StateDir) -> pids.Started | None:
        """The process that has it, None when none does."""
        running = (one for one in pids.read(place.pids) if one.role == ROLE and runs(one))
        return next(running, None)

    def release(self) -> None:
        """Gives it free."""
        os.close(self._fd)


def runs(process: pids.Started) -> bool:
    """Whether it still runs."""
    return pids.start_time(process.pid) == process.started
