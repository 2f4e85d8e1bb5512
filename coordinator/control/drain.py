"""The gentle end of a fleet: nothing new is sent, what waits is called off, rows in a batch are finished."""

from __future__ import annotations

from coordinator.control.controller import Controller
from coordinator.control.turn import Every

#: How often what still waits with the workers is called off, seconds: a beat tells of it late.
LOOK_S = 1.0


class Drain:
    """Once begun it cannot be taken back. The workers stay where they are, and join the next coordinator.

    What joined a batch since the worker's last beat is called off with what waits, and computed again by the next
    coordinator: a few seconds of work, where the worker alone could tell the two apart.
    """

    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self._look = Every(LOOK_S)
        self.begun = False

    def begin(self) -> None:
        """Begins it; twice does no harm."""
        if not self.begun:
            self.begun = True
            self._controller.tell("the batches are finished, then the coordinator ends")

    def done(self) -> bool:
        """Goes on with it; True when nothing runs any more. Raises BrokerError."""
        if not self.begun:
            return False
        if self._look.due():
            for member in self._controller.members.values():
                self._controller.call_off_waiting(member)
        return not self._controller.owed
