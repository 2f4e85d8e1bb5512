"""One turn of the loop that `fleet run` and `fleet up` share: look after everybody, take results, send work."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from coordinator.control.controller import Controller
from coordinator.control.watch import Watch
from fleet.errors import BrokerError

log = logging.getLogger(__name__)

#: Pause of the loop when nothing happened, seconds.
IDLE_S = 0.05


class Every:
    """Says that it is time, every so often; the first time at once."""

    def __init__(self, period_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._period_s = period_s
        self._clock = clock
        self._next_s = clock()

    def due(self) -> bool:
        """True once in each period."""
        now = self._clock()
        if now < self._next_s:
            return False
        self._next_s = now + self._period_s
        return True


class Turn:
    """Turns while the broker answers, and waits while it does not."""

    def __init__(self, controller: Controller, watch: Watch) -> None:
        self._controller = controller
        self._watch = watch
        #: True while the broker does not answer
        self.away = False

    def once(self, *, send: bool = True) -> bool:
        """False when there was nothing to do. Raises NoWorkersError, see `Watch.look`."""
        try:
            self._watch.look()
            heard = self._controller.absorb()
            self._controller.take_over()
            sent = send and self._controller.send_work()
        except BrokerError as error:
            if not self.away:
                log.warning("broker: %s", error)
            self.away = True
            self._watch.broker_is_silent()
            return False
        self.away = False
        return heard or sent
