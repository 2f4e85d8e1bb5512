"""A piece of work in a thread of its own that holds up nobody: not the loop that waits for it, nor the end."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


def begin(name: str, work: Callable[[], T]) -> Future[T]:
    """Runs `work` in a daemon thread; its outcome, or what it raised, once `done()`."""
    outcome: Future[T] = Future()

    def run() -> None:
        try:
            outcome.set_result(work())
        except BaseException as error:  # whatever it is, it belongs to whoever waits
            outcome.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return outcome
