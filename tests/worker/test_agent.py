"""The worker's Redis side against a real broker, without processes: agent, tickets, heartbeat, control, pump."""

import pickle
import threading
from types import SimpleNamespace

import pytest
from rq import Queue
from rq.exceptions import DeserializationError

from coordinator.broker.broker import Broker
from coordinator.broker.dispatch import Dispatch
from coordinator.control.processes import Processes
from coordinator.joining.accounts import Accounts
from coordinator.joining.users import Users
from fleet import codec, keys
from fleet.config import StateDir
from fleet.errors import DecodeError
from fleet.job import Finish, Sampling
from fleet.messages import Cancel, Finished, Ready, Returned, RowResult, RowWork, Shard, Stop
from worker.agent import Agent, Tickets, shard_of
from worker.client import connect
from worker.control import Control
from worker.desk import Desk
from worker.heartbeat import Heartbeat
from worker.held import ModelRef
from worker.pump import Pump

#: Its user may do what a joined worker may, and nothing here may need more.
W = "abcdefabcdef"
READY = Ready(model_hash="h", cap=4, kv_bytes=1, budget_bytes=1, context_tokens=1)


def shard(number, ids=(1,)):
    rows = tuple(RowWork(id=i, key=bytes(16), tokens=b"\1\0\0\0", max_tokens=1) for i in ids)
    return Shard(id=f"{W}-{number}", job=1, model="m", model_hash="h", sampling=Sampling(), prefix=b"", rows=rows)


def finished(*rows):
    return Finished(
        rows=tuple(RowResult(id=row, text="t", finish=Finish.STOP, input_tokens=1, output_tokens=1) for row in rows)
    )


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    state = StateDir(tmp_path_factory.mktemp("state"))
    users = Users(Accounts(state))
    broker = Broker(state, Processes(state), users=users)
    broker.start()
    with connect(broker.url) as client:
        password = users.admit(client, W, "mac", "proof")
        yield SimpleNamespace(url=broker.url, worker_url=broker.url_of(f"{W}:{password}"))
        refused = client.acl_log()
    broker.stop()
    assert refused == []


@pytest.fixture
def client(broker):
    with connect(broker.url) as client:
        client.flushdb()
        client.set(keys.EPOCH, "first")
        yield client


class Bench:
    """All parts of a worker but its processes and threads."""

    def __init__(self, broker, client):
        self.client = client
        self.worker_client = connect(broker.worker_url)
        self.dispatch = Dispatch(broker.url)
        self.desk = Desk(W, "n")
        self.tickets = Tickets()
        self.heartbeat = Heartbeat(self.desk, self.tickets, self.worker_client)
        self.control = Control(self.desk, self.worker_client)
        assert self.heartbeat.beat()
        self.rq_client = connect(broker.worker_url)
        self.agent = self.rq_worker(1)
        self.pump = Pump(self.desk, self.tickets, self.worker_client, lambda: self.agent)

    def rq_worker(self, number):
        said = {"announce": self.heartbeat.beat, "catch_up": self.control.catch_up}
        return Agent(self.desk, self.tickets, self.rq_client, f"{W}.n-{number}", **said)

    def take_one(self):
        self.agent.execute_job(*self.agent.dequeue_job_and_maintain_ttl(1))

    def load(self):
        self.desk.engine_started(ModelRef(model="m", model_hash="h"), [].append)
        self.desk.heard(READY)

    def close(self):
        self.desk.shards()
        self.desk.close()
        self.dispatch.close()
        self.rq_client.close()
        self.worker_client.close()


@pytest.fixture
def bench(broker, client):
    bench = Bench(broker, client)
    yield bench
    bench.close()


def test_a_taken_shard_is_in_the_lease_and_out_of_the_queue(bench):
    bench.dispatch.send(W, shard(1))
    bench.take_one()
    assert bench.dispatch.queued(W) == set()
    assert bench.dispatch.lease(W).beat.shards == (f"{W}-1",)
    assert bench.client.hget(f"rq:job:{W}-1", "status") == b"started"


def test_a_shard_shows_in_the_lease_before_it_leaves_the_queue(bench, monkeypatch):
    seen = []
    original = bench.agent.prepare_job_execution

    def look(job, remove_from_intermediate_queue=False):
        seen.append((bench.dispatch.queued(W), bench.dispatch.lease(W).beat.shards))
        original(job, remove_from_intermediate_queue)

    monkeypatch.setattr(bench.agent, "prepare_job_execution", look)
    bench.dispatch.send(W, shard(1))
    bench.take_one()
    assert seen == [({f"{W}-1"}, (f"{W}-1",))]


def test_a_finished_shard_leaves_rq_when_sent_and_the_lease_when_taken(bench):
    bench.dispatch.send(W, shard(1, (1, 2)))
    bench.take_one()
    bench.load()
    bench.desk.heard(finished(1))
    bench.pump.turn()
    assert bench.client.exists(f"rq:job:{W}-1"), "one row is still owed"
    bench.desk.heard(finished(2))
    bench.pump.turn()
    assert not bench.client.exists(f"rq:job:{W}-1", f"rq:wip:{W}", f"rq:executions:{W}-1")
    bench.heartbeat.beat()
    assert bench.dispatch.lease(W).beat.shards == (f"{W}-1",)
    entries = bench.dispatch.results(W, 10)
    bench.dispatch.delete(W, [entry for entry, _ in entries])
    bench.pump.turn()
    bench.heartbeat.beat()
    assert bench.dispatch.lease(W).beat.shards == ()
    assert not bench.desk.untaken


@pytest.mark.parametrize("lost", [f"rq:job:{W}-1", "rq:execution:w-1:*", "*"])
def test_finishing_a_shard_whose_records_are_gone_is_no_error(bench, lost):
    bench.dispatch.send(W, shard(1))
    bench.take_one()
    bench.load()
    bench.desk.heard(finished(1))
    for key in bench.client.scan_iter(match=lost):
        bench.client.delete(key)
    bench.client.set(keys.EPOCH, "first")
    assert bench.pump.turn()
    assert not bench.client.exists(f"rq:job:{W}-1")
    assert bench.tickets.all() == {}


def test_rqs_records_of_what_runs_are_renewed(bench):
    bench.dispatch.send(W, shard(1))
    bench.take_one()
    (execution,) = bench.client.scan_iter(match=f"rq:execution:{W}-1:*")
    bench.client.expire(execution, 5)
    bench.agent.keep_alive(bench.tickets.all().values())
    assert bench.client.ttl(execution) > 60


def test_rows_called_off_and_sent_anew_are_owed(bench):
    bench.dispatch.send(W, shard(1, (1, 2)))
    bench.take_one()
    bench.dispatch.control(W, Cancel(rows=(1, 2)))
    bench.dispatch.send(W, shard(2, (2,)))
    bench.take_one()  # the thread that waits for control messages has not been awake
    bench.control.read()
    assert {name: held.owed for name, held in bench.desk.shards().items()} == {f"{W}-1": set(), f"{W}-2": {2}}


def test_a_message_that_two_threads_read_is_obeyed_once(bench, monkeypatch):
    read = bench.control._entries

    def overtaken(block_ms):
        entries = read(block_ms)
        if block_ms is not None:  # the waiting thread has the message and is held up before it obeys
            bench.dispatch.send(W, shard(2, (2,)))
            bench.take_one()
        return entries

    bench.dispatch.control(W, Cancel(rows=(2,)))
    monkeypatch.setattr(bench.control, "_entries", overtaken)
    bench.control.read()
    assert bench.desk.shards()[f"{W}-2"].owed == {2}


def test_what_a_broken_connection_left_half_taken_is_taken(bench):
    bench.dispatch.send(W, shard(1))
    bench.dispatch.send(W, shard(2, (2,)))
    bench.client.lmove(f"rq:queue:{W}", f"rq:queue:{W}:intermediate", "LEFT", "RIGHT")
    bench.client.rpush(f"rq:queue:{W}:intermediate", f"{W}-9")
    bench.agent.recover()
    assert bench.desk.holds(f"{W}-1")
    assert bench.dispatch.queued(W) == {f"{W}-2"}


def test_no_registry_is_cleaned_and_nothing_is_requeued(bench):
    bench.dispatch.send(W, shard(1))
    bench.take_one()
    bench.client.zadd(f"rq:wip:{W}", {f"{W}-1:old": 1})
    bench.agent.run_maintenance_tasks()
    assert bench.client.zscore(f"rq:wip:{W}", f"{W}-1:old") == 1
    assert not bench.client.exists(f"rq:clean_registries:{W}")
    assert not bench.agent.should_run_maintenance_tasks


def test_the_rq_worker_ends_when_the_broker_is_another_or_the_desk_stops(bench):
    done = []
    thread = threading.Thread(target=lambda: done.append(bench.agent.work(logging_level="WARNING")))
    thread.start()
    bench.client.set(keys.EPOCH, "second")
    bench.heartbeat.beat()
    thread.join(60)
    assert done == [False]
    stopped = bench.rq_worker(2)
    bench.desk.obey(Stop())
    assert stopped.work(logging_level="WARNING") is False


def test_a_purged_shard_is_dropped_at_the_next_beat_but_not_after_a_wipe(bench):
    for number in (1, 2):
        bench.dispatch.send(W, shard(number, (number,)))
        bench.take_one()
    bench.client.delete(f"rq:job:{W}-1")
    bench.heartbeat.beat()
    assert {name: held.owed for name, held in bench.desk.shards().items()} == {f"{W}-1": set(), f"{W}-2": {2}}
    bench.client.flushdb()
    assert not bench.heartbeat.beat(), "a broker without an epoch is nobody's yet"
    bench.client.set(keys.EPOCH, "second")
    assert bench.heartbeat.beat()
    assert bench.desk.shards()[f"{W}-2"].owed == {2}
    assert bench.dispatch.lease(W).beat.epoch == "second"


def test_reports_go_again_to_a_broker_that_was_wiped(bench):
    bench.dispatch.send(W, shard(1))
    bench.take_one()
    bench.load()
    bench.desk.heard(finished(1))
    bench.pump.turn()
    bench.client.flushdb()
    assert not bench.pump.turn()
    bench.client.set(keys.EPOCH, "second")
    bench.heartbeat.beat()
    bench.pump.turn()  # sees that the stream is another's
    bench.pump.turn()
    assert [message for _, message in bench.dispatch.results(W, 10)] == [finished(1)]


def test_control_is_read_once_and_from_the_start_of_a_new_broker(bench):
    bench.dispatch.send(W, shard(1, (1, 2, 3)))
    bench.take_one()
    bench.dispatch.control(W, Cancel(rows=(1,)))
    bench.client.xadd(keys.control(W), {keys.FIELD: b"nonsense"})
    bench.control.read()
    assert bench.desk.shards()[f"{W}-1"].owed == {2, 3}
    bench.client.flushdb()
    bench.client.set(keys.EPOCH, "second")
    bench.heartbeat.beat()
    bench.client.xadd(keys.control(W), {keys.FIELD: codec.encode(Cancel(rows=(2,)))}, id="1-1")
    bench.control.read()
    assert bench.desk.shards()[f"{W}-1"].owed == {3}


def test_a_full_outbox_stops_the_taking(bench, monkeypatch):
    monkeypatch.setattr("worker.outbox.FULL_ROWS", 1)
    bench.dispatch.send(W, shard(1, (1, 2)))
    bench.take_one()
    bench.load()
    bench.desk.heard(finished(1))
    assert not bench.desk.await_room(0.05)
    bench.pump.turn()
    bench.dispatch.delete(W, [entry for entry, _ in bench.dispatch.results(W, 10)])
    bench.pump.turn()
    assert bench.desk.await_room(0.05)


def test_a_shard_that_arrives_after_a_stop_goes_straight_back(bench):
    bench.dispatch.send(W, shard(1, (1, 2)))
    job, queue = bench.agent.dequeue_job_and_maintain_ttl(1)
    bench.desk.obey(Stop())
    bench.agent.execute_job(job, queue)
    bench.pump.turn()
    assert [message for _, message in bench.dispatch.results(W, 10)] == [Returned(rows=(1, 2), id="n-1")]
    assert not bench.client.exists(f"rq:job:{W}-1")


def job(id=f"{W}-1", name=keys.SHARD_FUNCTION, args=None):
    return SimpleNamespace(id=id, func_name=name, args=(codec.encode(shard(1)),) if args is None else args)


def test_a_shard_is_read_from_its_job():
    assert shard_of(job()) == shard(1)


@pytest.mark.parametrize(
    "bad",
    [
        job(name="os.system"),
        job(name=None),
        job(args=()),
        job(args=(1, 2)),
        job(args={"a": 1}),
        job(args=("text",)),
        job(args=(b"bytes",)),
        job(args=(codec.encode(Stop()),)),
        job(id=f"{W}-2"),
    ],
)
def test_anything_else_is_refused(bad):
    with pytest.raises(DecodeError):
        shard_of(bad)


def test_a_payload_of_pickle_is_refused_unread(client):
    queue = Queue(W, connection=client, serializer=codec.RqSerializer)
    sent = queue.enqueue_call(keys.SHARD_FUNCTION, args=(b"x",), job_id=f"{W}-5", description="x")
    client.hset(sent.key, "data", pickle.dumps(("os.system", None, ("true",), {})))
    fetched = queue.fetch_job(f"{W}-5")
    with pytest.raises(DeserializationError):
        _ = fetched.func_name
    with pytest.raises(DecodeError):
        shard_of(fetched)
