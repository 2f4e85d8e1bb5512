"""A child that cannot outlive its parent: it ends when the pipe it inherited reaches end of file.

`start` makes such a child; the child calls `hold`, or, when it is a program that knows nothing of us, runs
under `python -m fleet.leash PROGRAM ARGS...`, which ends it. kill -9 of the parent closes the pipe too.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import IO

#: How long a leashed program may take over SIGTERM before SIGKILL, seconds.
GRACE_S = 3.0


def start(
    command: Sequence[str],
    *,
    log: IO[bytes] | int | None = None,
    env: Mapping[str, str] | None = None,
    pass_fds: Sequence[int] = (),
) -> subprocess.Popen[bytes]:
    """Starts `command` with the leash as its standard input, in a session of its own (so that Ctrl-C on the
    terminal reaches only us); output goes to `log`."""
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=log,
        stderr=log,
        env=dict(env) if env is not None else None,
        pass_fds=pass_fds,
        start_new_session=True,
    )


def end(child: subprocess.Popen[bytes], within_s: float) -> None:
    """Ends a child that `start` made, gently first, and waits until it is gone."""
    child.terminate()
    try:
        child.wait(within_s)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
    if child.stdin is not None:
        child.stdin.close()


def hold(fd: int = 0, last: Callable[[], object] | None = None) -> None:
    """Ends this process at once when `fd` reaches end of file, after a call of `last`, which must be quick."""

    def watch() -> None:
        while os.read(fd, 4096):
            pass
        try:
            if last is not None:
                last()
        finally:
            os._exit(1)

    threading.Thread(target=watch, name="leash", daemon=True).start()


def main(command: Sequence[str]) -> int:
    """Runs `command` until it ends or standard input does; its exit status."""
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL)

    def watch() -> None:
        while os.read(0, 4096):
            pass
        child.terminate()
        try:
            child.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            child.kill()

    signal.signal(signal.SIGTERM, lambda *_: child.terminate())
    threading.Thread(target=watch, name="leash", daemon=True).start()
    return child.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
