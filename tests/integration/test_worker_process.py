"""A real broker and a real worker process, with an engine child that needs no model."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from coordinator.broker import Broker, connect
from coordinator.dispatch import Dispatch
from coordinator.processes import Processes, start_time
from fleet import keys, leash
from fleet.config import StateDir
from fleet.errors import BrokerError
from fleet.job import Sampling
from fleet.messages import Cancel, Crashed, Finished, Returned, RowWork, Shard, Stop, WorkerState
from tests.fake_engine import answer

FAKE_ENGINE = Path(__file__).parents[1] / "fake_engine.py"
WORKER = "mac"


def key_of(row_id):
    return row_id.to_bytes(16, "big")


def shard(number, ids, *, tokens=4, model="m", **more):
    rows = tuple(RowWork(id=i, key=key_of(i), tokens=b"\1\0\0\0", max_tokens=tokens) for i in ids)
    return Shard(
        id=keys.shard(WORKER, number),
        job=1,
        model=model,
        model_hash=f"hash of {model}",
        sampling=Sampling(),
        prefix=b"",
        rows=rows,
        **more,
    )


def until(what, within_s=15.0):
    """Waits until `what()` is true; its value."""
    deadline = time.monotonic() + within_s
    while not (value := what()):
        assert time.monotonic() < deadline, "nothing came in time"
        time.sleep(0.02)
    return value


def gone(pid):
    return start_time(pid) is None


@dataclass
class Coordinator:
    """As much of a coordinator as these tests need: takes results in, keeps the last lease."""

    broker: Broker
    dispatch: Dispatch
    texts: dict = field(default_factory=dict)
    crashes: list = field(default_factory=list)
    returned: list = field(default_factory=list)

    def take(self):
        entries = self.dispatch.results(WORKER, 1000)
        for _, message in entries:
            if isinstance(message, Finished):
                self.texts.update((row.id, row.text) for row in message.rows)
            elif isinstance(message, Crashed):
                self.crashes.append(message)
            elif isinstance(message, Returned):
                self.returned.append(message)
        self.dispatch.delete(WORKER, [entry for entry, _ in entries])
        return self

    def has(self, ids):
        self.take()
        return self.texts.keys() >= set(ids)

    def beat(self):
        lease = self.dispatch.lease(WORKER)
        return lease.beat if lease else None


class Worker:
    def __init__(self, state, url, **environment):
        self.state = state
        command = [
            *(sys.executable, "-m", "worker.supervisor", "--broker", url, "--worker-id", WORKER),
            *("--state", str(state.root), "--engine-command", f'["{sys.executable}", "{FAKE_ENGINE}"]'),
        ]
        # The engine is a script in tests/: it finds our packages by the folder we run in.
        env = {**os.environ, "PYTHONPATH": str(FAKE_ENGINE.parents[1]), **environment}
        with (state.logs / "out.log").open("ab") as out:
            self.process = leash.start(command, log=out, env=env)

    def engine_pids(self):
        listing = subprocess.run(["ps", "-A", "-o", "pid=,ppid=,args="], capture_output=True, text=True, check=True)
        rows = [line.split(None, 2) for line in listing.stdout.splitlines()]
        ours = [row for row in rows if len(row) == 3 and str(FAKE_ENGINE) in row[2] and "--fd" in row[2]]
        return [int(pid) for pid, parent, _ in ours if int(parent) == self.process.pid]

    def engine(self):
        return until(self.engine_pids)[0]

    def end(self):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()

    def log(self):
        return (self.state.logs / "worker.log").read_text()


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


def test_two_hundred_rows_in_many_shards_finish_and_the_batch_never_drains(coordinator, start, state):
    """Shards of 4 rows for a batch of 8: the next ones must be there before the batch has room."""
    for number in range(50):
        coordinator.dispatch.send(WORKER, shard(number, range(number * 4, number * 4 + 4), tokens=5))
    start()
    until(lambda: coordinator.has(range(200)))
    assert coordinator.texts == {i: answer(key_of(i)) for i in range(200)}
    figures = until(lambda: coordinator.beat() and coordinator.beat().figures.steps and coordinator.beat()).figures
    assert figures.step_rows / figures.step_cap > 0.9
    computed = (state.logs / "engine.keys").read_text().split()
    assert len(computed) == len(set(computed)) == 200
    until(lambda: coordinator.beat().shards == ())
    assert coordinator.beat().state is WorkerState.IDLE
    with connect(coordinator.broker.url) as client:
        left = {key for key in client.scan_iter() if key.startswith((b"rq:job", b"rq:execution", b"rq:wip"))}
    assert left == set(), "finished shards leave nothing in RQ"


def test_a_shard_is_always_in_the_queue_or_in_the_lease(coordinator, start):
    start(FAKE_STEP_S="0.001")
    seen = []
    for number in range(40):
        coordinator.dispatch.send(WORKER, shard(number, [number], tokens=30))
        shard_id = keys.shard(WORKER, number)
        deadline = time.monotonic() + 0.1
        while time.monotonic() < deadline:
            queued = coordinator.dispatch.queued(WORKER)
            beat = coordinator.beat()
            if shard_id not in queued and (beat is None or shard_id not in beat.shards):
                coordinator.take()
                assert number in coordinator.texts
                break
            seen.append(shard_id in queued)
    assert seen


def test_kill_9_of_the_engine_gives_back_its_batch_and_the_rest_goes_on(coordinator, start):
    worker = start(FAKE_STEP_S="0.05")
    coordinator.dispatch.send(WORKER, shard(1, range(16), tokens=80))
    until(lambda: coordinator.beat() and len(coordinator.beat().running) == 8)
    first = worker.engine()
    os.kill(first, signal.SIGKILL)
    until(lambda: coordinator.take().crashes)
    crash = coordinator.crashes[0]
    assert sorted(crash.rows) == list(range(8))
    assert crash.cap == 8
    assert crash.reason == "signal 9 (killed)"
    until(lambda: coordinator.has(range(8, 16)))
    assert worker.engine() != first
    assert coordinator.texts.keys() == set(range(8, 16))
    until(lambda: coordinator.beat().shards == ())


def test_a_row_that_aborts_the_engine_is_reported_as_a_suspect(coordinator, start):
    start(FAKE_CRASH_KEYS=key_of(3).hex())
    coordinator.dispatch.send(WORKER, shard(1, range(4)))
    until(lambda: coordinator.take().crashes)
    assert 3 in coordinator.crashes[0].rows
    assert coordinator.crashes[0].reason == "signal 6 (aborted)"
    coordinator.dispatch.send(WORKER, shard(2, [3], exclusive=True, cap=1))
    until(lambda: len(coordinator.take().crashes) == 2)
    assert coordinator.crashes[1].rows == (3,)
    assert coordinator.crashes[1].latest == (3,)
    assert coordinator.crashes[1].cap == 1


def test_a_killed_broker_costs_no_row_and_no_engine(coordinator, start):
    worker = start(FAKE_STEP_S="0.02")
    for number in range(8):
        coordinator.dispatch.send(WORKER, shard(number, range(number * 8, number * 8 + 8), tokens=20))
    until(lambda: coordinator.has(range(8)))
    engine, process = worker.engine(), worker.process.pid
    os.kill(coordinator.broker.pid, signal.SIGKILL)
    until(lambda: not coordinator.broker.alive())
    time.sleep(1.0)
    coordinator.broker.restart()
    began = time.monotonic()
    beat = until(coordinator.beat)
    assert time.monotonic() - began < 4
    assert beat.epoch == coordinator.broker.epoch
    held = {int(name.rpartition("-")[2]) for name in beat.shards}
    assert held, "what it holds it still holds"
    # The coordinator sends again what is neither queued nor held nor told.
    coordinator.take()
    for number in set(range(8)) - held:
        rows = [i for i in range(number * 8, number * 8 + 8) if i not in coordinator.texts]
        if rows:
            coordinator.dispatch.send(WORKER, shard(100 + number, rows, tokens=20))
    until(lambda: coordinator.has(range(64)))
    assert worker.engine() == engine
    assert worker.process.pid == process
    assert worker.process.poll() is None
    until(lambda: coordinator.beat().shards == ())


def test_results_of_a_time_without_broker_arrive_afterwards(coordinator, start):
    start(FAKE_STEP_S="0.02")
    coordinator.dispatch.send(WORKER, shard(1, range(8), tokens=200))
    until(lambda: coordinator.beat() and coordinator.beat().running)
    os.kill(coordinator.broker.pid, signal.SIGKILL)
    time.sleep(2.0)
    with pytest.raises(BrokerError):
        coordinator.dispatch.queued(WORKER)
    coordinator.broker.restart()
    until(lambda: coordinator.has(range(8)))


def test_kill_9_of_the_supervisor_takes_the_engine_along(coordinator, start):
    worker = start(FAKE_STEP_S="0.05")
    coordinator.dispatch.send(WORKER, shard(1, range(8), tokens=1000))
    engine = worker.engine()
    worker.process.kill()
    until(lambda: gone(engine), 5)


def test_the_end_of_the_parent_is_the_end_of_all(coordinator, start):
    worker = start(FAKE_STEP_S="0.05")
    coordinator.dispatch.send(WORKER, shard(1, range(8), tokens=1000))
    engine = worker.engine()
    worker.process.stdin.close()
    until(lambda: gone(engine) and worker.process.poll() is not None, 5)


@pytest.mark.parametrize("way", ["message", "signal"])
def test_a_stop_finishes_the_batch_and_returns_the_rest(coordinator, start, way):
    worker = start(FAKE_STEP_S="0.05")
    coordinator.dispatch.send(WORKER, shard(1, range(8), tokens=100))
    coordinator.dispatch.send(WORKER, shard(2, range(8, 12), tokens=20))
    coordinator.dispatch.send(WORKER, shard(3, range(12, 20), tokens=20))
    until(lambda: coordinator.beat() and len(coordinator.beat().running) == 8 and len(coordinator.beat().shards) >= 2)
    if way == "message":
        coordinator.dispatch.control(WORKER, Stop())
    else:
        worker.process.terminate()
    until(lambda: coordinator.take() and worker.process.poll() is not None)
    coordinator.take()
    assert worker.process.returncode == 0
    assert coordinator.texts.keys() == set(range(8))
    returned = {row for message in coordinator.returned for row in message.rows}
    queued = coordinator.dispatch.queued(WORKER)
    left = set(range(8, 12)) | (set() if "mac-3" in queued else set(range(12, 20)))
    assert returned == left
    assert all(message.reason == "" for message in coordinator.returned)
    assert coordinator.beat() is None, "the lease is given back"


def test_a_second_signal_ends_it_at_once(coordinator, start):
    worker = start(FAKE_STEP_S="0.05")
    coordinator.dispatch.send(WORKER, shard(1, range(8), tokens=10_000))
    engine = worker.engine()
    worker.process.terminate()
    time.sleep(0.3)
    assert worker.process.poll() is None
    worker.process.terminate()
    assert worker.process.wait(3) == 1
    until(lambda: gone(engine), 5)


def test_cancelled_rows_are_not_computed_and_their_shard_ends(coordinator, start):
    start(FAKE_STEP_S="0.05")
    coordinator.dispatch.send(WORKER, shard(1, range(12), tokens=400))
    until(lambda: coordinator.beat() and coordinator.beat().running)
    coordinator.dispatch.control(WORKER, Cancel(rows=tuple(range(12))))
    until(lambda: coordinator.beat().shards == (), 8)
    assert coordinator.take().texts == {}


def test_a_purged_shard_is_dropped(coordinator, start):
    start(FAKE_STEP_S="0.05")
    coordinator.dispatch.send(WORKER, shard(1, range(8), tokens=10_000))
    until(lambda: coordinator.beat() and coordinator.beat().running)
    coordinator.dispatch.purge(WORKER)
    until(lambda: coordinator.beat() and coordinator.beat().shards == ())
    coordinator.dispatch.send(WORKER, shard(2, range(8), tokens=2))
    until(lambda: coordinator.has(range(8)))


def test_another_model_waits_for_its_turn_and_gets_an_engine_of_its_own(coordinator, start):
    worker = start(FAKE_STEP_S="0.02")
    coordinator.dispatch.send(WORKER, shard(1, range(8), tokens=20))
    first = worker.engine()
    coordinator.dispatch.send(WORKER, shard(2, range(8, 12), model="other"))
    coordinator.dispatch.send(WORKER, shard(3, range(12, 16)))
    until(lambda: coordinator.has(range(16)))
    assert gone(first)
    assert coordinator.crashes == []


def test_a_model_that_is_refused_comes_back_with_the_reason(coordinator, start):
    start(FAKE_REFUSE="its hash is another")
    coordinator.dispatch.send(WORKER, shard(1, range(4)))
    until(lambda: coordinator.take().returned)
    assert coordinator.returned == [Returned(rows=(0, 1, 2, 3), reason="its hash is another")]
    until(lambda: coordinator.beat().shards == ())


def test_an_engine_that_fails_to_load_twice_is_started_again(coordinator, start, tmp_path):
    (tmp_path / "left").write_text("2")
    start(FAKE_FAIL_LOADS=str(tmp_path / "left"))
    coordinator.dispatch.send(WORKER, shard(1, range(4)))
    until(lambda: coordinator.has(range(4)))
    assert coordinator.returned == []


def test_an_engine_that_never_loads_gives_everything_back(coordinator, start, tmp_path):
    (tmp_path / "left").write_text("1000")
    start(FAKE_FAIL_LOADS=str(tmp_path / "left"))
    coordinator.dispatch.send(WORKER, shard(1, range(4)))
    until(lambda: coordinator.take().returned)
    assert set(coordinator.returned[0].rows) == set(range(4))
    assert "exit status 3" in coordinator.returned[0].reason


def test_a_payload_that_is_no_shard_fails_its_job_and_harms_nothing(coordinator, start):
    from rq import Queue

    from fleet.codec import RqSerializer

    worker = start()
    with connect(coordinator.broker.url) as client:
        queue = Queue(WORKER, connection=client, serializer=RqSerializer)
        queue.enqueue_call("os.system", args=("secret words",), job_id="bad-1", description="x", retry=None)
        queue.enqueue_call(keys.SHARD_FUNCTION, args=(b"secret words",), job_id="bad-2", description="x")
        queue.enqueue_call(keys.SHARD_FUNCTION, args=("secret words",), job_id="bad-3", description="x")
        broken = queue.enqueue_call(keys.SHARD_FUNCTION, args=(b"x",), job_id="bad-4", description="x")
        client.hset(broken.key, "data", b"\xc1 not msgpack")
        unreadable = queue.enqueue_call(keys.SHARD_FUNCTION, args=(b"x",), job_id="bad-5", description="x")
        client.hset(unreadable.key, "created_at", "never")
        coordinator.dispatch.send(WORKER, shard(1, range(4)))
        until(lambda: coordinator.has(range(4)))
        assert client.zcard(f"rq:failed:{WORKER}") == 4
        until(lambda: coordinator.dispatch.queued(WORKER) == set())
    assert worker.process.poll() is None
    assert "secret words" not in worker.log()
    assert worker.log().count("is refused") == 4
