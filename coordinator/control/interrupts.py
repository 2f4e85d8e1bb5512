"""Ctrl-C and SIGTERM as a count that a loop looks at."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupts:
    """Counts Ctrl-C (and SIGTERM): one asks for a gentle stop, a second for an immediate one."""

    def __init__(self) -> None:
        self.count = 0

    def _note(self, _signum: int, _frame: FrameType | None) -> None:
        self.count += 1

    @contextmanager
    def caught(self) -> Iterator[None]:
        """While inside, the signals only count."""
        previous = {number: signal.signal(number, self._note) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)
