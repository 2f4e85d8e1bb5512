"""A Mac that sleeps past every patience: all of a joined worker's processes stopped, then woken long after its rows
went elsewhere."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.fault_yard import FaultYard
from tests.models import tiny_llama
from tests.runner import children, wait_until

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1200)]
SEED, ROWS, CAP = 20261130, 400, 8


@contextmanager
def wholly_asleep(yard: FaultYard, name: str) -> Iterator[float]:
    """Stops a worker and all it started meanwhile; since when, unix seconds."""
    pid = yard.workers[name].process.pid
    all_of_it = [pid, *children(pid)]
    assert len(all_of_it) > 1, "it has an engine"
    for each in all_of_it:
        os.kill(each, signal.SIGSTOP)
    try:
        yield time.time()
    finally:
        for each in all_of_it:
            os.kill(each, signal.SIGCONT)


@pytest.mark.parametrize("asleep_s", [70.0, 700.0])
def test_a_mac_that_slept_for_long_lost_and_doubled_nothing_and_works_again(tmp_path: Path, asleep_s: float) -> None:
    with FaultYard(tmp_path / "yard", FAKE_STEP_S="0.05") as yard:
        model = tiny_llama(tmp_path / "model")
        yard.begin("ab")
        job = yard.order(model, ROWS, SEED)
        wait_until(lambda: yard.mac("b").get("running") == CAP, story="b's batch is full")
        with wholly_asleep(yard, "b") as since:
            lost = yard.await_event("b is lost", within_s=20) - since
            yard.await_over(job, within_s=90)
            output = Path(yard.record(job).spec.output)
            answers = output.read_bytes()
            ran = yard.check(job, f"{asleep_s:g} s asleep, while it slept")
            assert max(ran.values()) == 1, "nobody but the sleeper had begun with its rows"
            time.sleep(max(0.0, since + asleep_s - time.time()))
        woken = time.time()
        back = yard.await_event("b is back", within_s=40) - woken
        print(f"asleep for {asleep_s:g} s: lost after {lost:.1f} s, back {back:.1f} s after it woke")
        before = yard.mac("b")["rows_done"]
        again = yard.order(model, ROWS, SEED, said="again")
        yard.await_over(again)
        assert yard.mac("b")["rows_done"] > before + CAP, "it is a worker as any other"
        assert yard.workers["b"].process.poll() is None
        both = yard.check(again, f"{asleep_s:g} s asleep, after it woke")
        assert output.read_bytes() == answers, "what it brought too late changed nothing"
        twice = sum(both.values()) - 2 * ROWS
        assert twice <= CAP, f"{twice} rows were computed twice: more than the batch it fell asleep with"
