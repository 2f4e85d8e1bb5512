"""Our own broker process, for real."""

import os
import signal
import stat
import subprocess
import sys
import time

import pytest
import redis

from coordinator.broker import broker as broker_module
from coordinator.broker.broker import Broker, config_text, connect
from coordinator.control.processes import Processes, read, start_time
from fleet import keys, leash
from fleet.config import StateDir
from fleet.errors import BrokerError


@pytest.fixture
def state(tmp_path):
    return StateDir(tmp_path / "state")


@pytest.fixture
def broker(state, monkeypatch):
    monkeypatch.delenv(broker_module.URL_VARIABLE, raising=False)
    broker = Broker(state, Processes(state))
    broker.start()
    yield broker
    broker.stop()


def gone(pid, within_s=60.0):
    deadline = time.monotonic() + within_s
    while start_time(pid) is not None and time.monotonic() < deadline:
        time.sleep(0.02)
    return start_time(pid) is None


def test_it_answers_on_a_private_socket_and_keeps_nothing(broker, state):
    with connect(broker.url) as client:
        assert client.get(keys.EPOCH) == broker.epoch.encode()
        assert client.config_get("appendonly")["appendonly"] == "no"
        assert client.config_get("save")["save"] == ""
        assert client.config_get("port")["port"] == "0"
        assert client.config_get("maxmemory-policy")["maxmemory-policy"] == "noeviction"
    assert stat.S_IMODE((state.root / "run").stat().st_mode) == 0o700
    assert not list((state.root / "run").glob("*.rdb"))


def test_a_restart_is_a_wipe_under_a_new_epoch(broker):
    with connect(broker.url) as client:
        client.set("x", 1)
    first = broker.epoch
    os.kill(broker.pid, signal.SIGKILL)
    deadline = time.monotonic() + 5
    while broker.alive() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not broker.alive()
    broker.restart()
    assert broker.alive()
    assert broker.epoch != first
    with connect(broker.url) as client:
        assert client.get("x") is None
        assert client.get(keys.EPOCH) == broker.epoch.encode()


def test_a_killed_leash_leaves_no_server_behind_after_a_restart(broker):
    server, leash = broker.pid, broker._child.pid
    os.kill(leash, signal.SIGKILL)
    deadline = time.monotonic() + 5
    while broker.alive() and time.monotonic() < deadline:
        time.sleep(0.01)
    broker.restart()
    assert gone(server)
    with connect(broker.url) as client:
        assert client.ping()


def test_stop_ends_the_server(state):
    broker = Broker(state, Processes(state))
    broker.start()
    pid = broker.pid
    broker.stop()
    assert gone(pid)
    with pytest.raises(redis.ConnectionError), connect(broker.url) as client:
        client.ping()


def test_a_kill_of_the_parent_ends_it_and_its_pid_is_recorded(state):
    code = (
        "import sys,time,pathlib; from fleet.config import StateDir; from coordinator.broker.broker import Broker;"
        "from coordinator.control.processes import Processes; s=StateDir(pathlib.Path(sys.argv[1]));"
        "b=Broker(s, Processes(s)); b.start(); print(b.pid, flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(state.root)], stdout=subprocess.PIPE) as parent:
        pid = int(parent.stdout.readline())
        assert pid in [process.pid for process in read(state.pids)]
        parent.kill()
    assert gone(pid)


def test_a_long_state_path_gets_a_short_socket(tmp_path):
    state = StateDir(tmp_path / ("x" * 90) / "a folder with 'quotes' and spaces")
    broker = Broker(state, Processes(state))
    broker.start()
    folder = broker._short_folder
    try:
        assert len(os.fsencode(folder / "broker.sock")) <= broker_module.MAX_SOCKET_PATH_BYTES
        with connect(broker.url) as client:
            assert client.ping()
    finally:
        broker.stop()
    assert not folder.exists()


@pytest.mark.parametrize("name", ["a space", "a\nline", "caf\udce9", "ü"])
def test_a_state_path_that_rq_could_not_read_back_gets_a_plain_socket(tmp_path, monkeypatch, name):
    # RQ splits the list of clients at spaces: with the socket at such a path no worker ever came up.
    monkeypatch.delenv(broker_module.URL_VARIABLE, raising=False)
    state = StateDir(tmp_path / name)
    broker = Broker(state, Processes(state))
    broker.start()
    try:
        with connect(broker.url) as client:
            (entry,) = client.client_list()
            assert f"{broker._short_folder}/broker.sock" in entry["addr"]
    finally:
        broker.stop()


def test_an_empty_address_means_none(state, monkeypatch):
    monkeypatch.setenv(broker_module.URL_VARIABLE, "")
    assert not Broker(state, Processes(state)).foreign


def test_a_server_killed_before_its_first_answer_is_started_once_more(state, monkeypatch):
    monkeypatch.delenv(broker_module.URL_VARIABLE, raising=False)
    started = []
    really = leash.start

    def start(command, **more):
        child = really(command, **more)
        started.append(child)
        if len(started) == 1:
            child.kill()
            child.wait()
        return child

    monkeypatch.setattr(broker_module.leash, "start", start)
    broker = Broker(state, Processes(state))
    broker.start()
    try:
        assert len(started) == 2
        with connect(broker.url) as client:
            assert client.get(keys.EPOCH) == broker.epoch.encode()
    finally:
        broker.stop()


def test_a_server_that_does_not_start_is_told_with_its_last_words(state, monkeypatch):
    monkeypatch.setitem(broker_module.CONFIG, "maxmemory", "plenty")
    broker = Broker(state, Processes(state))
    with pytest.raises(BrokerError, match=r"did not start.*maxmemory"):
        broker.start()


def test_a_foreign_redis_is_used_and_left_running(broker, state):
    with connect(broker.url) as client:
        client.delete(keys.EPOCH)
        foreign = Broker(state, Processes(state), url=broker.url)
        foreign.start()
        assert client.get(keys.EPOCH) == foreign.epoch.encode()
        foreign.stop()
        assert client.ping()
        assert client.get(keys.EPOCH) is None


def test_a_foreign_redis_with_a_fleet_in_it_is_refused(broker, state):
    with pytest.raises(BrokerError, match="holds keys of a fleet"):
        Broker(state, Processes(state), url=broker.url).start()


def test_a_foreign_redis_that_does_not_answer_is_told_without_its_password(state):
    with pytest.raises(BrokerError) as caught:
        Broker(state, Processes(state), url="redis://:secret@127.0.0.1:1/0").start()
    assert "secret" not in str(caught.value)


def test_values_in_the_configuration_are_quoted():
    assert config_text({"dir": '/a b/"c"\\'}) == 'dir "/a b/\\"c\\"\\\\"\n'
