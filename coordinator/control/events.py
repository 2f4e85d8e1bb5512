"""What happened lately, in sentences: kept for the screen, and told to whoever listens."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable

from coordinator.screens.snapshot import Event

log = logging.getLogger(__name__)

#: Events kept.
KEPT = 200


class Events:
    """The last events. Owned by the controller's thread."""

    def __init__(self, listener: Callable[[Event], None] = lambda _event: None, clock: Callable[[], float] = time.time):
        self._listener = listener
        self._clock = clock
        self._kept: deque[Event] = deque(maxlen=KEPT)

    def tell(self, text: str) -> None:
        """Something happened."""
        log.info("%s", text)
        event = Event(at=self._clock(), text=text)
        self._kept.append(event)
        self._listener(event)

    def all(self) -> tuple[Event, ...]:
        """Oldest first."""
        return tuple(self._kept)
