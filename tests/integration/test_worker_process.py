"""Rows through a real broker and a real worker process, with an engine child that needs no model."""

import time

import pytest

from coordinator.broker.broker import connect
from fleet import keys
from fleet.errors import Exit
from fleet.messages import Cancel, Stop, WorkerState
from tests.fake_engine import answer
from tests.worker_process import WORKER, gone, key_of, shard, until

#: A lease that nobody renews ends by itself after 9 to 12 seconds.
LEFT_S = 8.0


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
    until(lambda: (told := coordinator.beat()) and told.shards == ())
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
    assert coordinator.beat().state is WorkerState.STOPPING
    until(lambda: coordinator.beat() is None, LEFT_S)


def test_a_second_signal_ends_it_at_once(coordinator, start):
    worker = start(FAKE_STEP_S="0.05")
    coordinator.dispatch.send(WORKER, shard(1, range(8), tokens=10_000))
    engine = worker.engine()
    worker.process.terminate()
    time.sleep(0.3)
    assert worker.process.poll() is None
    worker.process.terminate()
    assert worker.process.wait(30) == Exit.INTERRUPTED
    until(lambda: gone(engine))


def test_cancelled_rows_are_not_computed_and_their_shard_ends(coordinator, start):
    start(FAKE_STEP_S="0.05")
    coordinator.dispatch.send(WORKER, shard(1, range(12), tokens=400))
    until(lambda: coordinator.beat() and coordinator.beat().running)
    coordinator.dispatch.control(WORKER, Cancel(rows=tuple(range(12))))
    until(lambda: (told := coordinator.beat()) and told.shards == ())
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
