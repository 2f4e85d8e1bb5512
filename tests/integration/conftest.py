"""A real broker and real worker processes."""

import pytest

from coordinator.broker.broker import Broker
from coordinator.broker.dispatch import Dispatch
from coordinator.control.processes import Processes
from fleet.config import StateDir
from tests.worker_process import Coordinator, Worker


@pytest.fixture
def state(tmp_path):
    state = StateDir(tmp_path / "state")
    state.make()
    return state


@pytest.fixture
def coordinator(state):
    broker = Broker(state, Processes(state))
    broker.start()
    dispatch = Dispatch(broker.url)
    yield Coordinator(broker, dispatch)
    dispatch.close()
    broker.stop()


@pytest.fixture
def start(state, coordinator):
    workers = []

    def begin(**environment):
        workers.append(Worker(state, coordinator.broker.url, **environment))
        return workers[-1]

    yield begin
    for worker in workers:
        worker.end()
        print(worker.log())
