"""One `fleet join` in a state folder at a time, found by pid and start time."""

import os
import signal
import subprocess
import sys

import pytest

from fleet import pids
from fleet.config import StateDir
from fleet.errors import StateLockedError
from tests.worker_process import until
from worker.seat import ROLE, Seat, home, runs

SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]
TAKE = """
import sys, time
from pathlib import Path
from fleet.config import StateDir
from worker.seat import Seat
seat = Seat.take(StateDir(Path(sys.argv[1])))
print("taken", flush=True)
time.sleep(60)
"""


@pytest.fixture
def place(tmp_path):
    return home(StateDir(tmp_path / "state"))


@pytest.fixture
def other(place):
    child = subprocess.Popen([sys.executable, "-c", TAKE, str(place.root)], stdout=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "taken\n"
    yield child
    child.kill()
    child.wait()
    child.stdout.close()


def test_nobody_has_it_before_it_is_taken_and_after_it_was_released(place):
    assert Seat.holder(place) is None
    seat = Seat.take(place)
    assert Seat.holder(place).pid == os.getpid()
    seat.release()
    Seat.take(place).release()


def test_a_second_is_refused_and_told_what_to_do(place, other):
    assert Seat.holder(place).pid == other.pid
    with pytest.raises(StateLockedError, match="fleet leave"):
        Seat.take(place)
    assert Seat.holder(place).pid == other.pid


def test_it_is_free_once_its_holder_was_killed(place, other):
    os.kill(other.pid, signal.SIGKILL)
    other.wait()
    assert Seat.holder(place) is None
    Seat.take(place).release()


def test_a_stranger_with_a_used_pid_is_not_the_holder(place):
    place.make()
    child = subprocess.Popen(SLEEP)
    place.pids.write_text(f'{{"pid": {child.pid}, "started": "another time", "role": "{ROLE}"}}\n')
    assert Seat.holder(place) is None
    Seat.take(place).release()
    assert child.poll() is None
    child.kill()
    child.wait()


def test_an_engine_that_a_killed_join_left_behind_is_ended(place):
    place.make()
    engine = subprocess.Popen(SLEEP)
    pids.record(place.pids, engine.pid, "engine")
    process = pids.read(place.pids)[0]
    assert runs(process)
    seat = Seat.take(place)
    assert engine.wait(60) == -signal.SIGKILL
    until(lambda: not runs(process))
    seat.release()
