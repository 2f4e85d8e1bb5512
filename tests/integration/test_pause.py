"""A worker process whose owner wants the machine for a while."""

import os
import subprocess
import sys

import pytest

from fleet import keys, leash
from fleet.messages import WorkerState
from tests.fake_engine import answer
from tests.worker_process import FAKE_ENGINE, WORKER, Worker, key_of, shard, until

#: The supervisor as it is, but it looks at the conditions more often.
SUPERVISOR = "import sys; from worker import pauses, supervisor; pauses.POLL_S = 0.1; sys.exit(supervisor.main())"


class Resting(Worker):
    """A worker that may pause."""

    def __init__(self, state, url):
        self.state = state
        command = [
            *(sys.executable, "-c", SUPERVISOR, "--broker", url, "--worker-id", WORKER, "--pause", "--on-battery"),
            *("--state", str(state.root), "--engine-command", f'["{sys.executable}", "{FAKE_ENGINE}"]'),
        ]
        env = {**os.environ, "PYTHONPATH": str(FAKE_ENGINE.parents[1]), "FAKE_CAP": "4", "FAKE_STEP_S": "0.02"}
        self.process = leash.start(command, log=subprocess.DEVNULL, env=env)


@pytest.fixture
def worker(state, coordinator):
    worker = Resting(state, coordinator.broker.url)
    yield worker
    worker.end()
    print(worker.log())


def test_a_paused_worker_ends_its_batch_gives_back_the_rest_frees_memory_and_works_on_after(state, coordinator, worker):
    coordinator.dispatch.send(WORKER, shard(1, range(10), tokens=300))
    until(lambda: (beat := coordinator.beat()) and len(beat.running) == 4)
    engine = worker.engine()
    (state.root / "paused").touch()
    beat = until(lambda: (beat := coordinator.beat()) and beat.state is WorkerState.PAUSED and beat)
    assert (beat.note, beat.waiting) == ("user", 0)
    assert beat.host.name
    until(lambda: coordinator.take().returned)
    (returned,) = coordinator.returned
    assert returned.reason == "", "nobody is to blame"
    until(lambda: coordinator.has(set(range(10)) - set(returned.rows)))
    assert not coordinator.texts.keys() & set(returned.rows), "each row is either done or given back"
    until(lambda: engine not in worker.engine_pids())
    coordinator.dispatch.send(WORKER, shard(2, [20]))
    until(lambda: (told := coordinator.beat()) and told.shards == ())
    assert coordinator.dispatch.queued(WORKER) == {keys.shard(WORKER, 2)}, "a paused worker takes nothing"
    (state.root / "paused").unlink()
    until(lambda: coordinator.has([20]))
    assert coordinator.texts[20] == answer(key_of(20))
    assert coordinator.crashes == []
