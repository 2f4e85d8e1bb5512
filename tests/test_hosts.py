"""The hosts that other tests rely on leave nothing behind."""

import secrets
import subprocess

import pytest

from tests import hosts
from tests.hosts import Host, Network, missing
from tests.worker_process import until


@pytest.fixture(autouse=True)
def _allowed():
    if reason := missing():
        pytest.skip(reason)


def namespaces(word):
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    return {line.split()[0] for line in listed.splitlines() if word in line}


def pids(namespace):
    listed = subprocess.run(["ip", "netns", "pids", namespace], capture_output=True, text=True, check=True).stdout
    return [int(pid) for pid in listed.split()]


@pytest.mark.parametrize("where", ["__init__", "plug", "run"])
def test_a_host_that_cannot_be_made_is_taken_down_with_the_others(monkeypatch, where):
    name = f"h{secrets.token_hex(3)}"
    with Network() as network:
        lan = network.segment()
        network.host(f"{name}a", lan)
        monkeypatch.setattr(Host, where, refuse)
        with pytest.raises(RuntimeError):
            network.host(f"{name}b", lan)
    assert namespaces(name) == set()
    assert namespaces(network._name) == set()


def refuse(*_, **__):
    raise RuntimeError("the kernel would not")


def test_one_that_cannot_be_taken_down_keeps_none_of_the_others(monkeypatch):
    name, killed = f"h{secrets.token_hex(3)}", hosts._kill
    network = Network().__enter__()
    first, last = network.host(f"{name}a"), network.host(f"{name}b")
    sleepers = [host.popen(["sleep", "100"]) for host in (first, last)]
    for host, sleeper in zip((first, last), sleepers, strict=True):
        until(lambda host=host, sleeper=sleeper: sleeper.pid in pids(host.namespace))
    monkeypatch.setattr(hosts, "_kill", lambda pid: refused(pid) if pid == sleepers[1].pid else killed(pid))
    with pytest.raises(PermissionError):
        network.__exit__()
    assert sleepers[0].wait(60) < 0
    assert namespaces(name) == {last.namespace}
    monkeypatch.undo()
    hosts._take_down(last.namespace)
    assert (sleepers[1].wait(60) < 0, namespaces(name)) == (True, set())


def refused(pid):
    raise PermissionError(pid)


def test_what_a_killed_run_left_is_ended_with_its_processes():
    gone = subprocess.Popen(["true"])
    gone.wait()
    left = f"{hosts._PREFIX}-{gone.pid}-{secrets.token_hex(2)}-a"
    subprocess.run(["ip", "netns", "add", left], check=True)
    sleeper = subprocess.Popen(["ip", "netns", "exec", left, "sleep", "100"])
    try:
        until(lambda: sleeper.pid in pids(left))
        with Network():
            assert sleeper.wait(60) < 0
            assert namespaces(left) == set()
    finally:
        sleeper.kill()
        sleeper.wait()
