"""What is left behind when the command is killed, and paths and brokers that workers cannot use."""

import os
import signal
import subprocess

import pytest

from coordinator.broker.broker import connect
from coordinator.broker.valkey import config_text, server_program
from coordinator.control.processes import Processes
from fleet.config import StateDir
from fleet.pids import start_time
from tests.models import tiny_llama
from tests.runner import Fleet, wait_until, write_prompts
from tests.worker_process import Worker


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_llama(tmp_path_factory.mktemp("model"))


@pytest.fixture
def stopped(tmp_path, model):
    """A command that runs, and its engine, which was stopped."""
    fleet = Fleet(tmp_path, fake=True, env={"FAKE_STEP_S": "0.05"})
    source = write_prompts(tmp_path / "in.jsonl", [f"hello {number}" for number in range(16)])
    process = fleet.start("run", "generate", source, "-m", model, "-o", fleet.out, "--max-tokens", "5")
    (engine,) = wait_until(lambda: fleet.pids("engine"), story="an engine in the file of pids")
    os.kill(engine, signal.SIGSTOP)
    yield fleet, process, engine
    for pid in (process.pid, *fleet.pids()):
        if start_time(pid) is not None:
            os.kill(pid, signal.SIGKILL)
    process.communicate()


def test_a_stopped_engine_ends_with_the_command_that_was_killed(stopped):
    # A stopped process does not see its link close: it stayed for ever, with the model in its memory.
    _, process, engine = stopped
    process.kill()
    wait_until(lambda: start_time(engine) is None, story="the engine's end")


def test_the_next_run_ends_a_stopped_engine_whose_worker_was_killed_too(stopped):
    fleet, process, engine = stopped
    for pid in (*fleet.pids("worker"), process.pid):
        os.kill(pid, signal.SIGKILL)
    process.wait(60)
    assert start_time(engine) is not None
    assert engine in [ended.pid for ended in Processes(fleet.state).clear()]
    wait_until(lambda: start_time(engine) is None, story="the engine's end")


def test_a_state_folder_with_a_space_works(tmp_path, model):
    # RQ reads the socket's path back from a list that it splits at spaces: the run stood idle for ever.
    (tmp_path / "with a space\nand a line").mkdir()
    fleet = Fleet(tmp_path / "with a space\nand a line", fake=True)
    source = write_prompts(tmp_path / "in.jsonl", ["one", "two"])
    fleet.run("run", "generate", source, "-m", model, "-o", fleet.out, "--max-tokens", "2").expect(0)
    assert fleet.counts().done == 2


def test_a_worker_whose_rq_workers_fail_at_once_ends_with_an_error(tmp_path):
    # It tried again every 0.3 s without an end, and the coordinator had nothing to count.
    folder = tmp_path / "a b"
    folder.mkdir()
    socket, config = folder / "r.sock", tmp_path / "redis.conf"
    config.write_text(config_text({"port": "0", "unixsocket": str(socket), "save": "", "dir": str(folder)}))
    with subprocess.Popen([server_program(), config], stdout=subprocess.DEVNULL) as server:
        try:
            wait_until(socket.exists)
            url = f"unix://{socket}"
            with connect(url) as client:
                client.set("fleet:epoch", "e")
            state = StateDir(tmp_path / "state")
            state.make()
            worker = Worker(state, url)
            assert worker.process.wait(60) == 1
            assert "5 RQ workers failed at once: giving up" in worker.log()
            worker.end()
        finally:
            server.terminate()
