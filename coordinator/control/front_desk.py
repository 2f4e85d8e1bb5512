"""Where other threads ask something of the one thread that owns the ledger and the fleet, and wait for the answer.

desk.ask(lambda service: service.submit(order))      # from the API's threads
desk.serve(service)                                  # in the controller's loop, many times a second
"""

from __future__ import annotations

import queue
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from coordinator.broker.dispatch import QueueLine
from coordinator.intake.intake import IntakeOptions
from coordinator.screens.snapshot import FleetSnapshot
from fleet.errors import FleetError

T = TypeVar("T")
#: Longest wait for an answer, seconds: the loop takes far less for a turn, so it is stuck after that.
ANSWER_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """A job to take on."""

    options: IntakeOptions
    #: absolute paths on the coordinator's machine
    inputs: tuple[str, ...]
    #: absolute path on the coordinator's machine: written from the ledger when the job ends, errors beside it
    output: str
    #: higher goes first; equal ones in the order they came
    priority: int = 0
    #: computes everything anew
    fresh: bool = False


class Service(Protocol):
    """What may be asked; every call runs in the controller's thread and returns at once."""

    def submit(self, order: Order) -> int:
        """Queues a job, or takes an equal one up again; its id. FleetError when it can never run."""

    def cancel(self, job: int) -> None:
        """Stops working on a job. UsageError when there is none of this id."""

    def snapshot(self) -> FleetSnapshot:
        """The fleet now."""

    def queues(self) -> list[QueueLine]:
        """The broker's queues, for looking into faults."""

    def kick(self, name: str) -> str:
        """Removes the worker of this name or id: user, connections, rows. Its name. UsageError when there is none."""

    def drain(self) -> None:
        """Lets every worker finish its batch, then ends the coordinator."""

    def token(self, *, rotate: bool) -> str:
        """The join token; `rotate` makes a new secret first: workers that have joined stay."""


class FrontDesk:
    """Carries calls to the controller's thread and their outcomes back."""

    def __init__(self) -> None:
        self._waiting: queue.SimpleQueue[tuple[Callable[[Service], Any], Future[Any]]] = queue.SimpleQueue()

    def ask(self, work: Callable[[Service], T], timeout_s: float = ANSWER_S) -> T:
        """Runs `work` in the controller's thread; its result, or what it raised.

        Raises FleetError when the controller does not come round in `timeout_s`; the work is then dropped.
        """
        answer: Future[T] = Future()
        self._waiting.put((work, answer))
        try:
            return answer.result(timeout_s)
        except TimeoutError as error:
            answer.cancel()
            raise FleetError("the coordinator is busy and gave no answer: try again") from error

    def serve(self, service: Service) -> bool:
        """Does everything that was asked; False when nothing was."""
        served = False
        while not self._waiting.empty():
            work, answer = self._waiting.get()
            served = True
            if answer.set_running_or_notify_cancel():
                _do(work, service, answer)
        return served


def _do(work: Callable[[Service], Any], service: Service, answer: Future[Any]) -> None:
    try:
        answer.set_result(work(service))
    except Exception as error:  # belongs to whoever asked, whatever it is
        answer.set_exception(error)
