"""The engine child as a process: started with one end of a socketpair, spoken to without blocking, ended by EOF."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fleet.errors import DecodeError
from fleet.messages import Message
from fleet.pids import record
from worker.held import ModelRef
from worker.link import Link

#: How long a child may take to end once its link is closed, seconds.
GRACE_S = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The child's end of the link is closed."""

    #: what it sent that was no message, empty when it simply went
    complaint: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """How to start an engine for any model."""

    #: program and first arguments
    command: tuple[str, ...]
    #: where its stderr goes
    log: Path
    #: file of the keys it computed
    key_log: Path
    #: file that remembers the hashes of weight files
    hash_cache: Path
    #: file that remembers what engines measured, None for none
    knees: Path | None = None
    #: file of the processes started here, None for none: an engine that was stopped does not see its link close
    pids: Path | None = None
    #: bytes it may use, 0 for its own choice
    memory_bytes: int = 0
    #: makes its environment of ours
    environment: Callable[[Mapping[str, str]], dict[str, str]] = dict

    def arguments(self, fd: int, model: ModelRef, cap: int) -> list[str]:
        """The whole command line; no row's text is ever on it."""
        return [
            *self.command,
            *("--fd", str(fd), "--model", model.model, "--hash", model.model_hash),
            *("--hash-cache", str(self.hash_cache), "--key-log", str(self.key_log)),
            *(("--embed",) if model.embeds else ()),
            *(("--cap", str(cap)) if cap else ()),
            *(("--knees", str(self.knees)) if self.knees else ()),
            *(("--memory", str(self.memory_bytes)) if self.memory_bytes else ()),
        ]

    def __call__(self, model: ModelRef, cap: int) -> EngineProcess:
        """Starts one; OSError when the program cannot be started."""
        ours, theirs = socket.socketpair()
        try:
            with self.log.open("ab") as log:
                child = subprocess.Popen(
                    self.arguments(theirs.fileno(), model, cap),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=self.environment(os.environ),
                    pass_fds=(theirs.fileno(),),
                    start_new_session=True,
                )
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        if self.pids is not None:
            with contextlib.suppress(OSError):  # a full disk: it is ended by its link in any case but one
                record(self.pids, child.pid, "engine")
        return EngineProcess(child, Link(ours))


class EngineProcess:
    """One engine child; two threads carry its messages, so that neither a stuck child nor a full pipe stops us."""

    def __init__(self, child: subprocess.Popen[bytes], link: Link) -> None:
        self._child = child
        self._link = link
        self._inbox: queue.SimpleQueue[Message | Ended] = queue.SimpleQueue()
        self._out: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        for name, work in (("engine-reader", self._read), ("engine-writer", self._write)):
            threading.Thread(target=work, name=name, daemon=True).start()

    @property
    def pid(self) -> int:
        """Process id."""
        return self._child.pid

    def send(self, message: Message) -> None:
        """Sends in order, without waiting; what a dead child does not read is lost with it."""
        self._out.put(message)

    def receive(self, timeout_s: float) -> Message | Ended | None:
        """The next message, None when the time ran out."""
        try:
            return self._inbox.get(timeout=timeout_s)
        except queue.Empty:
            return None

    def kill(self) -> None:
        """Ends it at once."""
        self._child.kill()

    def close(self) -> str:
        """Closes the link, which ends the child, waits for it, and tells in words how it ended."""
        self._out.put(None)
        with contextlib.suppress(subprocess.TimeoutExpired):
            if self._child.poll() is None:
                self._link.close()
                self._child.wait(GRACE_S)
        if self._child.poll() is None:
            self._child.kill()
        self._link.close()
        return ended_in_words(self._child.wait())

    def _read(self) -> None:
        complaint = ""
        try:
            while (message := self._link.receive()) is not None:
                self._inbox.put(message)
        except DecodeError:
            complaint = "it sent bytes that are no message"  # which may hold text: not told further
        except (OSError, ValueError):
            pass  # the link was closed here
        self._inbox.put(Ended(complaint=complaint))

    def _write(self) -> None:
        with contextlib.suppress(OSError):  # it is gone; the reader tells
            while (message := self._out.get()) is not None:
                self._link.send(message)


def ended_in_words(returncode: int) -> str:
    """A process's end for people: a signal by its name, or an exit status."""
    if returncode >= 0:
        return f"exit status {returncode}"
    text = signal.strsignal(-returncode) or "unknown"
    return f"signal {-returncode} ({text.lower()})"


def default_command(python: str) -> Sequence[str]:
    """The engine of this package."""
    return (python, "-m", "worker.engine")
