"""Shards, results, leases and control in a real broker."""

import os
import signal

import pytest

from coordinator.broker.broker import Broker, connect
from coordinator.broker.dispatch import Dispatch, belongs
from coordinator.control.processes import Processes
from fleet import codec, keys
from fleet.config import StateDir
from fleet.errors import BrokerError
from fleet.job import Finish, Sampling
from fleet.messages import (
    Beat,
    Cancel,
    Finished,
    RowResult,
    RowWork,
    Shard,
    WorkerState,
)


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    state = StateDir(tmp_path_factory.mktemp("state"))
    broker = Broker(state, Processes(state))
    broker.start()
    yield broker
    broker.stop()


@pytest.fixture
def client(broker):
    with connect(broker.url) as client:
        client.flushdb()
        client.set(keys.EPOCH, broker.epoch)
        yield client


@pytest.fixture
def dispatch(broker, client):
    client.ping()  # a broker emptied for this test
    dispatch = Dispatch(broker.url)
    yield dispatch
    dispatch.close()


def shard(worker, number):
    row = RowWork(id=number, key=b"k" * 16, tokens=b"\1\0\0\0", max_tokens=4)
    return Shard(
        id=keys.shard(worker, number),
        job=1,
        model="m",
        model_hash="h",
        sampling=Sampling(),
        prefix=b"",
        rows=(row,),
    )


def beat(worker):
    return Beat(
        worker=worker, nonce="n", epoch="e", state=WorkerState.IDLE, shards=(), running=(), waiting=0, engine=None
    )


def test_a_sent_shard_is_queued_with_no_text_and_no_pickle(dispatch, client):
    dispatch.send("w", shard("w", 1))
    assert dispatch.queued("w") == {"w-1"}
    job = client.hgetall("rq:job:w-1")
    assert job[b"description"] == b"w-1"
    assert job[b"timeout"] == b"-1"
    assert job[b"result_ttl"] == b"0"
    assert b"retries_left" not in job


def test_a_shard_an_agent_is_just_taking_counts_as_queued(dispatch, client):
    dispatch.send("w", shard("w", 1))
    client.lmove("rq:queue:w", "rq:queue:w:intermediate")
    assert dispatch.queued("w") == {"w-1"}
    assert not dispatch.take_back("w", "w-1")


def test_a_shard_taken_back_is_gone(dispatch, client):
    dispatch.send("w", shard("w", 1))
    dispatch.send("w", shard("w", 2))
    assert dispatch.take_back("w", "w-1")
    assert dispatch.queued("w") == {"w-2"}
    assert not client.exists("rq:job:w-1")
    assert not dispatch.take_back("w", "w-1")


def test_a_lease_is_read_with_the_time_it_has_left(dispatch, client):
    assert dispatch.lease("w") is None
    client.set(keys.lease("w"), codec.encode(beat("w")), px=12_000)
    lease = dispatch.lease("w")
    assert lease.beat == beat("w")
    assert 11_000 < lease.ttl_ms <= 12_000


def test_results_stay_until_deleted_and_a_corrupt_entry_harms_nothing(dispatch, client, caplog):
    row = RowResult(id=1, text="secret answer", finish=Finish.STOP, input_tokens=1, output_tokens=1)
    client.xadd(keys.results("w"), {keys.FIELD: codec.encode(Finished(rows=(row,)))})
    client.xadd(keys.results("w"), {keys.FIELD: b"secret answer"})
    client.xadd(keys.results("w"), {keys.FIELD: codec.encode(beat("w"))})
    client.xadd(keys.results("w"), {b"other": b"x"})
    client.xadd(keys.results("w"), {keys.FIELD: codec.encode(Finished(rows=()))})
    entries = dispatch.results("w", 100)
    assert [message for _, message in entries] == [Finished(rows=(row,)), Finished(rows=())]
    assert client.xlen(keys.results("w")) == 2
    assert "secret" not in caplog.text
    assert len(caplog.records) == 3
    dispatch.delete("w", [entry for entry, _ in entries])
    assert dispatch.results("w", 100) == []


def test_control_messages_arrive_in_order(dispatch, client):
    dispatch.control("w", Cancel(rows=(1,)))
    dispatch.control("w", Cancel(rows=(2,)))
    read = [codec.decode(fields[keys.FIELD]) for _, fields in client.xrange(keys.control("w"))]
    assert read == [Cancel(rows=(1,)), Cancel(rows=(2,))]


def test_a_purge_leaves_nothing_of_the_worker_and_everything_of_its_neighbour(dispatch, client):
    for worker in ("w", "w-1", "w2"):
        dispatch.send(worker, shard(worker, 1))
        dispatch.send(worker, shard(worker, 2))
        client.lmove(f"rq:queue:{worker}", f"rq:queue:{worker}:intermediate")
        client.zadd(f"rq:wip:{worker}", {f"{worker}-1:e": 1})
        client.hset(f"rq:execution:{worker}-1:e", "a", 1)
        client.zadd(f"rq:executions:{worker}-1", {"e": 1})
        client.zadd(f"rq:failed:{worker}", {f"{worker}-3": 1})
        client.hset(f"rq:worker:{worker}.n1", "a", 1)
        client.sadd(f"rq:worker:{worker}.n1:executions", "x")
        client.sadd("rq:workers", f"rq:worker:{worker}.n1")
        client.sadd(f"rq:workers:{worker}", f"rq:worker:{worker}.n1")
        client.set(keys.lease(worker), b"x")
        client.xadd(keys.results(worker), {keys.FIELD: b"x"})
        dispatch.control(worker, Cancel(rows=()))
    before = set(client.scan_iter())
    dispatch.purge("w")
    left = set(client.scan_iter())
    assert before - left == {key for key in before if belongs(key.decode(), "w")}
    assert dispatch.queued("w") == set()
    assert dispatch.queued("w-1") == {"w-1-1", "w-1-2"}
    assert dispatch.queued("w2") == {"w2-1", "w2-2"}
    assert b"rq:job:w-1-1" in left
    assert b"rq:job:w-1" not in left
    assert client.smembers("rq:workers") == {b"rq:worker:w-1.n1", b"rq:worker:w2.n1"}
    dispatch.purge("w-1")
    dispatch.purge("w2")
    assert set(client.scan_iter()) == {keys.EPOCH.encode()}


def test_the_epoch_is_read(dispatch, broker):
    assert dispatch.epoch() == broker.epoch


def test_a_broker_that_is_gone_is_one_error_and_one_that_is_back_is_found(tmp_path):
    state = StateDir(tmp_path)
    broker = Broker(state, Processes(state))
    broker.start()
    dispatch = Dispatch(broker.url)
    dispatch.send("w", shard("w", 1))
    os.kill(broker.pid, signal.SIGKILL)
    broker._child.wait(60)
    with pytest.raises(BrokerError):
        dispatch.queued("w")
    broker.restart()
    assert dispatch.queued("w") == set()
    dispatch.close()
    broker.stop()
