"""What a run left outside of its state folder is gone after the next one."""

import subprocess
import sys
from pathlib import Path

import pytest

from coordinator.broker import valkey
from coordinator.broker.broker import Broker, connect
from coordinator.broker.dispatch import Dispatch
from coordinator.broker.traces import TraceBook, Traces, remove_folder
from coordinator.control.processes import Processes
from fleet import keys
from fleet.config import StateDir
from fleet.errors import BrokerError
from tests.worker_process import shard


@pytest.fixture
def state(tmp_path, monkeypatch):
    monkeypatch.delenv(valkey.URL_VARIABLE, raising=False)
    return StateDir(tmp_path / "state")


@pytest.fixture
def redis(tmp_path, monkeypatch):
    """A Redis of a person's own, with a key in it."""
    monkeypatch.delenv(valkey.URL_VARIABLE, raising=False)
    theirs = StateDir(tmp_path / "theirs")
    server = Broker(theirs, Processes(theirs))
    server.start()
    with connect(server.url) as client:
        client.delete(keys.EPOCH)
        client.set("mine", "1")
        client.url = server.url
        yield client
    server.stop()


def test_a_socket_folder_left_by_a_killed_run_is_removed_by_the_next(tmp_path):
    # kill -9, SIGHUP and SIGQUIT each left a folder in /tmp for ever.
    state = StateDir(tmp_path / "with a space")
    code = (
        "import os,sys,pathlib; from fleet.config import StateDir; from coordinator.broker.broker import Broker;"
        "from coordinator.control.processes import Processes; s=StateDir(pathlib.Path(sys.argv[1]));"
        "b=Broker(s, Processes(s)); b.start(); print(b._short_folder, flush=True); os._exit(9)"
    )
    told = subprocess.run([sys.executable, "-c", code, str(state.root)], capture_output=True, text=True, timeout=60)
    left = Path(told.stdout.strip())
    assert left.is_dir(), told.stderr
    Processes(state).clear()
    broker = Broker(state, Processes(state))
    broker.start()
    assert not left.exists()
    broker.stop()
    assert TraceBook(state).read() == Traces()


def test_only_folders_that_we_made_are_removed(tmp_path):
    other, link, ours = tmp_path / "other", tmp_path / "fleet-link", tmp_path / "fleet-1"
    other.mkdir()
    link.symlink_to(other)
    ours.mkdir()
    for path in (other, link, ours):
        remove_folder(str(path))
    remove_folder("")
    remove_folder("fleet-relative")
    assert (other.exists(), link.is_symlink(), ours.exists()) == (True, True, False)


@pytest.mark.parametrize("text", ["", "{}", "[1]", "not json", '{"folder": 1, "epoch": "", "workers": 3}'])
def test_traces_that_cannot_be_read_are_none(state, text):
    state.make()
    state.traces.write_text(text)
    assert TraceBook(state).read() == Traces()


def test_a_run_leaves_nothing_of_ours_in_a_foreign_redis(state, redis):
    # rq:queues, the results stream and the RQ worker's key stayed there.
    broker = Broker(state, Processes(state), url=redis.url)
    broker.start()
    broker.expect("mac")
    fill(redis.url)
    assert redis.exists("rq:queues")
    broker.stop()
    assert redis.keys("*") == [b"mine"]
    assert not state.traces.exists()


def test_after_a_kill_the_same_folder_takes_its_keys_over_and_no_other_does(tmp_path, state, redis):
    killed = Broker(state, Processes(state), url=redis.url)
    killed.start()
    killed.expect("mac")
    fill(redis.url)
    other = StateDir(tmp_path / "other")
    with pytest.raises(BrokerError, match="holds keys of a fleet"):
        Broker(other, Processes(other), url=redis.url).start()
    again = Broker(state, Processes(state), url=redis.url)
    again.start()
    assert sorted(redis.keys("*")) == [keys.EPOCH.encode(), b"mine"]
    assert redis.get(keys.EPOCH) == again.epoch.encode() != killed.epoch.encode()


def test_a_foreign_redis_with_another_kind_of_rq_queues_is_refused(state, redis):
    # every shard failed with WRONGTYPE, and the run stood idle for ever
    redis.set("rq:queues", "a text")
    with pytest.raises(BrokerError, match="rq:queues that is not RQ's"):
        Broker(state, Processes(state), url=redis.url).start()
    assert redis.get(keys.EPOCH) is None


def fill(url):
    """Keys of a worker that was sent a shard and wrote a result."""
    dispatch = Dispatch(url)
    dispatch.send("mac", shard(1, [1, 2]))
    dispatch.close()
    with connect(url) as client:
        client.xadd(keys.results("mac"), {keys.FIELD: b"x"})
        client.hset("rq:worker:mac.1-1", "birth", "now")
        client.sadd("rq:workers", "rq:worker:mac.1-1")
