"""Calls from other threads reach the controller's thread, and their outcomes come back."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest

from coordinator.control.front_desk import FrontDesk, Service
from fleet.errors import FleetError, UsageError


class Cancels:
    """A service that knows one job."""

    def __init__(self) -> None:
        self.cancelled: list[tuple[int, int]] = []

    def cancel(self, job: int) -> None:
        if job != 7:
            raise UsageError(f"there is no job {job}")
        self.cancelled.append((job, threading.get_ident()))


def ask_and_serve(desk: FrontDesk, service: Cancels, work: Callable[[Service], Any]) -> Any:
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(desk.ask, work, 10.0)
        while not asked.done():
            desk.serve(cast(Service, service))
        return asked.result()


def test_a_call_runs_in_the_thread_that_serves() -> None:
    service = Cancels()
    assert ask_and_serve(FrontDesk(), service, lambda it: it.cancel(7)) is None
    assert service.cancelled == [(7, threading.get_ident())]


def test_an_error_is_raised_where_it_was_asked() -> None:
    with pytest.raises(UsageError, match="no job 8"):
        ask_and_serve(FrontDesk(), Cancels(), lambda it: it.cancel(8))


def test_a_call_that_was_given_up_is_not_done_later() -> None:
    desk, service = FrontDesk(), Cancels()
    with pytest.raises(FleetError, match="busy"):
        desk.ask(lambda it: it.cancel(7), 0.01)
    assert desk.serve(cast(Service, service))
    assert service.cancelled == []


def test_serving_without_a_call_does_nothing() -> None:
    assert not FrontDesk().serve(cast(Service, Cancels()))
