"""What we started, and what of it is left."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from coordinator.control import processes
from coordinator.control.processes import Processes, start_time
from fleet.config import StateDir


@pytest.fixture
def sleeper():
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    yield child
    child.kill()
    child.wait()


def test_a_process_left_behind_is_ended(tmp_path, sleeper):
    Processes(StateDir(tmp_path)).record(sleeper.pid, "worker")
    ended = Processes(StateDir(tmp_path)).clear()
    assert [(p.pid, p.role) for p in ended] == [(sleeper.pid, "worker")]
    assert sleeper.wait(60) != 0
    assert not StateDir(tmp_path).pids.exists()


def test_one_that_ignores_sigterm_is_killed(tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "GRACE_S", 0.2)
    code = "import signal,time; signal.signal(15, signal.SIG_IGN); print(1, flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as child:
        child.stdout.readline()
        record = Processes(StateDir(tmp_path))
        record.record(child.pid, "worker")
        record.clear()
        assert child.wait(60) == -9


def test_a_role_is_ended_alone_and_also_where_it_is_stopped(tmp_path, monkeypatch, sleeper):
    monkeypatch.setattr(processes, "GRACE_S", 0.2)
    record = Processes(StateDir(tmp_path))
    record.record(sleeper.pid, "worker")
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as engine:
        record.record(engine.pid, "engine")
        engine.send_signal(signal.SIGSTOP)
        record.end_role("engine")
        assert engine.wait(60) < 0
    assert sleeper.poll() is None


def test_a_stranger_with_the_same_pid_is_left_alone(tmp_path, sleeper):
    line = json.dumps({"pid": sleeper.pid, "started": "another time", "role": "worker"})
    StateDir(tmp_path).pids.write_text(line + "\n")
    assert Processes(StateDir(tmp_path)).clear() == []
    assert sleeper.poll() is None


def test_lines_cut_by_a_crash_are_passed_over(tmp_path, sleeper):
    Processes(StateDir(tmp_path)).record(sleeper.pid, "broker")
    with StateDir(tmp_path).pids.open("a") as file:
        file.write('{"pid": 12, "sta')
    assert len(Processes(StateDir(tmp_path)).clear()) == 1


def test_start_times_tell_processes_apart_and_end_with_them(sleeper):
    assert start_time(sleeper.pid) == start_time(sleeper.pid)
    assert start_time(os.getpid()) is not None
    sleeper.kill()
    deadline = time.monotonic() + 5
    while start_time(sleeper.pid) is not None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert start_time(sleeper.pid) is None, "a zombie is no process"
