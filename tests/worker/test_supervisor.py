"""What keeps a worker's threads going."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from coordinator.broker.broker import Broker
from coordinator.control.processes import Processes
from fleet.config import StateDir
from worker.client import connect
from worker.desk import Desk
from worker.supervisor import lasting, retire


@pytest.fixture
def client(tmp_path: Path) -> Iterator[redis.Redis]:
    state = StateDir(tmp_path)
    broker = Broker(state, Processes(state))
    broker.start()
    with connect(broker.url) as client:
        yield client
    broker.stop()


def test_a_thread_that_meets_a_bug_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    calls = []

    def work() -> None:
        calls.append(len(calls))
        if len(calls) < 3:
            raise AttributeError("a bug")

    with caplog.at_level(logging.ERROR):
        lasting(work, Desk("w", "n"))
    assert calls == [0, 1, 2]
    assert caplog.text.count("AttributeError: a bug") == 2


def test_a_thread_that_meets_bugs_ends_with_the_desk() -> None:
    desk = Desk("w", "n")

    def work() -> None:
        desk.close()
        raise AttributeError("a bug")

    lasting(work, desk)
    assert desk.closed


def test_a_client_is_retired_under_another_threads_hands(client: redis.Redis) -> None:
    troubles: list[Exception] = []
    over = threading.Event()

    def use() -> None:
        try:
            while not over.is_set():
                with client.pipeline() as pipe:
                    pipe.watch("a")
                    pipe.get("a")
                    pipe.multi()
                    pipe.set("a", "b" * 10_000).get("a").execute()
        except Exception as trouble:
            troubles.append(trouble)

    user = threading.Thread(target=use)
    user.start()
    for _ in range(300):
        retire(client)
        time.sleep(0.001)
    over.set()
    user.join()
    assert troubles == []
