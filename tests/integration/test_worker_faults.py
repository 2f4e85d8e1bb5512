"""What dies around a real worker process, and what is left of it."""

import os
import signal
import time

import pytest
from rq import Queue

from coordinator.broker.broker import connect
from fleet import keys
from fleet.codec import RqSerializer
from fleet.config import LEASE_TTL_S
from fleet.errors import BrokerError
from tests.worker_process import WORKER, gone, key_of, shard, until


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
    until(lambda: (told := coordinator.beat()) and told.shards == ())


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
    assert time.monotonic() - began < LEASE_TTL_S
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
    until(lambda: (told := coordinator.beat()) and told.shards == ())


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
    until(lambda: gone(engine))


def test_the_end_of_the_parent_is_the_end_of_all(coordinator, start):
    worker = start(FAKE_STEP_S="0.05")
    coordinator.dispatch.send(WORKER, shard(1, range(8), tokens=1000))
    engine = worker.engine()
    worker.process.stdin.close()
    until(lambda: gone(engine) and worker.process.poll() is not None)


def test_a_model_that_is_refused_comes_back_with_the_reason(coordinator, start):
    start(FAKE_REFUSE="its hash is another")
    coordinator.dispatch.send(WORKER, shard(1, range(4)))
    until(lambda: coordinator.take().returned)
    assert [(each.rows, each.reason) for each in coordinator.returned] == [((0, 1, 2, 3), "its hash is another")]
    until(lambda: (told := coordinator.beat()) and told.shards == ())


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
