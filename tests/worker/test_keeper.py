"""Engine children of a process without a model: started, heard, killed, replaced."""

import os
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from fleet.job import Sampling
from fleet.messages import Cancel, Crashed, Finished, Ready, Returned, RowWork, Shard
from worker.desk import Desk
from worker.engine_process import Ended, Launch, ended_in_words
from worker.held import ModelRef
from worker.keeper import Keeper

FAKE_ENGINE = Path(__file__).parents[1] / "fake_engine.py"
MODEL = ModelRef(model="m", model_hash="h")


def shard(ids, tokens=2):
    rows = tuple(RowWork(id=i, key=i.to_bytes(16, "big"), tokens=b"\1\0\0\0", max_tokens=tokens) for i in ids)
    return Shard(id="w-1", job=1, model="m", model_hash="h", sampling=Sampling(), prefix=b"", rows=rows)


@pytest.fixture
def launch(tmp_path):
    def environment(env):
        return {**env, "PYTHONPATH": str(FAKE_ENGINE.parents[1])}

    return Launch(
        command=(sys.executable, str(FAKE_ENGINE)),
        log=tmp_path / "engine.log",
        key_log=tmp_path / "keys",
        hash_cache=tmp_path / "hashes.json",
        environment=environment,
    )


@pytest.fixture
def desk():
    desk = Desk("w", "n")
    yield desk
    desk.shards()
    desk.close()


def keep(desk, launch, **options):
    thread = threading.Thread(target=Keeper(desk, launch, **options).run, daemon=True)
    thread.start()
    return thread


def reports(desk, wanted, within_s=60.0):
    """Drains the outbox until `wanted` letters came."""
    letters = []
    deadline = time.monotonic() + within_s
    while len(letters) < wanted:
        letter = desk.draft()
        if letter is None:
            assert time.monotonic() < deadline, f"only {letters}"
            time.sleep(0.01)
            continue
        desk.sent(letter, "e", f"{len(letters) + 1}-0")
        letters.append(letter)
    return letters


def test_an_engine_starts_with_the_first_shard_and_ends_with_the_desk(desk, launch):
    thread = keep(desk, launch)
    time.sleep(0.1)
    assert not launch.log.exists(), "no shard, no engine"
    desk.take(shard([1]))
    assert isinstance(reports(desk, 1)[0], Finished)
    desk.close()
    thread.join(60)
    assert not thread.is_alive()


def test_a_stalled_engine_is_killed_and_its_batch_given_back(desk, launch, monkeypatch):
    monkeypatch.setenv("FAKE_STALL_KEYS", (1).to_bytes(16, "big").hex())
    keep(desk, launch, stall_s=0.5)
    desk.take(shard([1]))
    (crash,) = reports(desk, 1)
    assert isinstance(crash, Crashed)
    assert crash.rows == (1,)
    assert crash.reason.startswith("no sign of life")


def test_loading_may_take_longer_than_a_stall(desk, launch, monkeypatch):
    monkeypatch.setenv("FAKE_LOAD_S", "1.2")
    keep(desk, launch, stall_s=0.5)
    desk.take(shard([1]))
    assert isinstance(reports(desk, 1)[0], Finished)


def test_a_program_that_cannot_be_started_gives_the_rows_back(desk, launch):
    keep(desk, replace(launch, command=("/nowhere/engine",)))
    desk.take(shard([1, 2]))
    (returned,) = reports(desk, 1)
    assert isinstance(returned, Returned)
    assert set(returned.rows) == {1, 2}
    assert "cannot be started" in returned.reason


def test_an_engine_that_speaks_no_language_of_ours_is_ended(desk, launch):
    code = (
        "import socket, sys, time; link = socket.socket(fileno=int(sys.argv[2]));"
        "link.sendall(b'\\0\\0\\0\\3abc'); time.sleep(60)"
    )
    keep(desk, replace(launch, command=(sys.executable, "-c", code)))
    desk.take(shard([1]))
    (returned,) = reports(desk, 1, 20)
    assert "no message" in returned.reason


def test_a_closed_link_ends_the_child(launch):
    process = launch(MODEL, 3)
    message = process.receive(60)
    assert isinstance(message, Ready)
    assert message.cap == 3
    assert process.close() == "exit status 0"
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)


def test_a_killed_child_is_told_by_its_signal_and_sending_to_it_harms_nothing(launch):
    process = launch(MODEL, 0)
    process.kill()
    while not isinstance(process.receive(60), Ended):
        pass
    process.send(Cancel(rows=(1,)))
    assert process.close() == "signal 9 (killed)"


def test_sending_never_waits_for_a_child_that_does_not_read(launch):
    process = replace(launch, command=(sys.executable, "-c", "import time; time.sleep(100)"))(MODEL, 0)
    began = time.monotonic()
    for _ in range(20):
        process.send(Cancel(rows=tuple(range(100_000))))
    assert time.monotonic() - began < 50
    assert process.receive(0.01) is None
    process.kill()
    process.close()


def test_the_command_line_carries_the_model_and_no_text(launch):
    arguments = launch.arguments(7, MODEL, 5)
    assert arguments[2:] == [
        *("--fd", "7", "--model", "m", "--hash", "h"),
        *("--hash-cache", str(launch.hash_cache), "--key-log", str(launch.key_log), "--cap", "5"),
    ]


def test_ends_in_words():
    assert ended_in_words(-6) == "signal 6 (aborted)"
    assert ended_in_words(70) == "exit status 70"
