"""The exclusive lock on a state folder: one process works on it at a time."""

from __future__ import annotations

import fcntl
import os
import time
from dataclasses import dataclass

from coordinator.control.running import Running
from fleet.config import StateDir
from fleet.errors import StateLockedError, StorageError

#: `StateLock.holder` looks by taking the lock for microseconds: who meets that tries again after this pause, seconds.
LOOK_S = 0.05
#: Bytes of the lock file at most: two numbers.
_NOTE_BYTES = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """The process that works on a state folder."""

    pid: int
    #: the job it works on, None for none (yet)
    job: int | None


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
            _lock_soon(fd)
        except OSError as error:
            holder = _read_note(fd)
            os.close(fd)
            raise StateLockedError(_locked(state, holder)) from error
        lock = cls(fd)
        lock._note(f"{os.getpid()}\n")
        return lock

    @staticmethod
    def holder(state: StateDir) -> Holder | None:
        """Who works on the folder now; None when nobody does."""
        try:
            fd = os.open(state.lock, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return _read_note(fd)
        finally:
            os.close(fd)
        return None

    def note_job(self, job: int) -> None:
        """Lets others know which job the holder works on."""
        self._note(f"{os.getpid()}\n{job}\n")

    def _note(self, text: str) -> None:
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, text.encode(), 0)

    def release(self) -> None:
        """Gives the folder free; twice does no harm."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _locked(state: StateDir, holder: Holder) -> str:
    """Which command has the folder, and what to do."""
    pid = f"pid {holder.pid or 'unknown'}"
    if Running.of(state) is not None:
        who, way_out = f"`fleet up` ({pid})", "`fleet submit` gives it work, `fleet down` ends it"
    elif holder.job is not None:
        who, way_out = f"`fleet run` ({pid}, job {holder.job})", f"wait for it, end it with `fleet cancel {holder.job}`"
    else:
        who, way_out = f"another `fleet` command ({pid})", "wait for it"
    return f"{who} works on {state.root}: {way_out}, or give another folder with --state-dir"


def _lock_soon(fd: int) -> None:
    """Locks the file for itself alone; OSError when another still has it after LOOK_S."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        time.sleep(LOOK_S)
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _read_note(fd: int) -> Holder:
    numbers = [int(word) for word in os.pread(fd, _NOTE_BYTES, 0).split() if word.isdigit()]
    return Holder(pid=numbers[0] if numbers else 0, job=numbers[1] if len(numbers) > 1 else None)
