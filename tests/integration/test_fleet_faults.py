"""Whatever a worker, the broker or the coordinator suffers, the job ends whole: real processes, fake engines."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fake_engine import answer
from tests.models import tiny_llama
from tests.runner import children, wait_until
from tests.yard import Yard

#: From a worker's last sign of life until its rows are back in the pool.
BACK_S = 14.0


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("model") / "tiny")


def begin(yard: Yard, names: str) -> None:
    """A fleet of workers with one-letter names, all of them here."""
    yard.up()
    for name in names:
        yard.join(name)
    for name in names:
        yard.await_event(f"{name} is here", within_s=90)


def whole(yard: Yard, job: int, rows: int) -> bool:
    texts = yard.answers(job)
    return len({text for text in texts if text and text.startswith(answer(b""))}) == rows == len(texts)


@pytest.mark.timeout(240)
def test_one_killed_one_asleep_for_long_and_one_for_short_cost_no_row(tmp_path: Path, model: Path) -> None:
    rows = 1000
    with Yard(tmp_path / "yard", FAKE_STEP_S="0.05") as yard:
        begin(yard, "abcd")
        job = yard.submit("job", model, rows, "--max-tokens", "20")
        wait_until(lambda: all(yard.mac(name).get("running") == 8 for name in "abcd"), story="full batches")
        yard.workers["c"].process.send_signal(signal.SIGSTOP)
        yard.workers["b"].process.send_signal(signal.SIGSTOP)
        yard.workers["a"].process.kill()
        asleep = time.time()
        at_short(yard, asleep)
        lost = [yard.await_event(f"{name} is lost", within_s=60) - asleep for name in "ab"]
        assert max(lost) <= BACK_S, lost
        wait_until(
            lambda: [yard.mac(name).get("assigned") for name in "ab"] == [0, 0], story="nothing is left with them"
        )
        assert not any("c is lost" in event for event in yard.events())
        time.sleep(max(0.0, asleep + 20 - time.time()))
        yard.workers["b"].process.send_signal(signal.SIGCONT)
        yard.await_event("b is back", within_s=60)
        before = yard.mac("b")["rows_done"]
        wait_until(lambda: yard.mac("b").get("rows_done", 0) > before + 16, story="b works again")
        yard.await_state(job, "finished", within_s=120)
        assert whole(yard, job, rows)
        assert yard.fleet.counts(job).failed == 0
        twice = len(yard.computed()) - rows
        assert twice <= 3 * 24, f"{twice} rows were computed twice: more than what was in flight with those that went"


def at_short(yard: Yard, asleep: float) -> None:
    """c wakes after five seconds; it was late and nothing else."""
    wait_until(lambda: yard.mac("c").get("state") == "stale", within_s=10, story="c is stale")
    time.sleep(max(0.0, asleep + 5 - time.time()))
    yard.workers["c"].process.send_signal(signal.SIGCONT)
    wait_until(lambda: yard.mac("c").get("state") == "working", story="c works again")


@pytest.mark.timeout(240)
def test_broker_and_coordinator_are_killed_and_workers_and_job_go_on(tmp_path: Path, model: Path) -> None:
    rows = 400
    with Yard(tmp_path / "yard", FAKE_STEP_S="0.05") as yard:
        begin(yard, "ab")
        job = yard.submit("job", model, rows, "--max-tokens", "20")
        yard.await_done(job, 24)
        kill_child(yard, "valkey")
        yard.await_event("the broker was started anew")
        grows(yard, job)
        kill_child(yard, "gatehouse")
        grows(yard, job)
        assert yard.up_ is not None
        yard.up_.end(signal.SIGKILL)
        yard.up()
        yard.await_event(f"job {job} goes on")
        grows(yard, job)
        yard.await_state(job, "finished", within_s=120)
        assert whole(yard, job, rows)
        assert [worker.process.poll() for worker in yard.workers.values()] == [None, None]
        assert all(yard.mac(name)["rows_done"] > 0 for name in "ab")
        assert engines(yard) == 2, "no model was loaded again"
        assert yard.fleet.run("down").expect(0).out == "the fleet is down\n"


def grows(yard: Yard, job: int) -> None:
    """More rows are recorded than now."""
    yard.await_done(job, yard.fleet.counts(job).done + 24, within_s=40)


def engines(yard: Yard) -> int:
    logs = [path.read_text() for path in yard.folder.glob("*/worker/log/worker.log")]
    return sum(text.count(" started") for text in logs)


def kill_child(yard: Yard, word: str) -> None:
    """kill -9 of the coordinator's children whose command has `word`."""
    found = [pid for pid in children(yard.running.pid) if word in command_of(pid)]
    assert found, word
    for pid in found:
        os.kill(pid, signal.SIGKILL)


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_eight_workers_with_churn_lose_nothing(tmp_path: Path, model: Path) -> None:
    seed, rows = 20261130, 2000
    rng = random.Random(seed)
    with Yard(tmp_path / "yard", FAKE_STEP_S="0.1") as yard:
        begin(yard, "abcdefgh")
        job = yard.submit("job", model, rows, "--max-tokens", "20")
        yard.await_done(job, 40)
        ends = time.monotonic() + 120
        while time.monotonic() < ends and yard.fleet.counts(job).open > 100:
            suffer(yard, rng.choice("abcdefgh"), rng)
            time.sleep(rng.uniform(2, 5))
        yard.await_state(job, "finished", within_s=240)
        assert whole(yard, job, rows), f"seed {seed}"
        assert yard.fleet.counts(job).failed == 0


def suffer(yard: Yard, name: str, rng: random.Random) -> None:
    """Something happens to a worker."""
    worker = yard.workers[name]
    if worker.process.poll() is not None:
        yard.rejoin(name)
        return
    happens: list[Callable[[], object]] = [
        worker.process.kill,
        lambda: worker.process.send_signal(signal.SIGTERM),
        lambda: worker.process.send_signal(signal.SIGSTOP),
        lambda: worker.process.send_signal(signal.SIGCONT),
        lambda: [os.kill(pid, signal.SIGKILL) for pid in children(worker.process.pid)],
    ]
    rng.choice(happens)()
    if rng.random() < 0.5:
        worker.process.send_signal(signal.SIGCONT)
