"""Two workers of unlike speed: what the slow one will not come to soon moves to the fast one, and no row is lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from coordinator.broker.broker import Broker
from coordinator.broker.dispatch import Dispatch
from coordinator.control.controller import Controller
from coordinator.control.job_run import JobRun
from coordinator.control.member import Member
from coordinator.control.processes import Processes
from coordinator.control.turn import IDLE_S, Turn
from coordinator.control.watch import Watch
from coordinator.intake.feed import Feed
from coordinator.ledger.ledger import Ledger
from fleet import leash
from fleet.config import StateDir
from tests.fake_engine import answer
from tests.ledgers import request, row, spec
from tests.runner import ROOT

ENGINE = json.dumps([sys.executable, str(ROOT / "tests" / "fake_engine.py")])
ROWS, TOKENS = 100, 40
#: Far more than any of these runs takes on a busy machine.
LIMIT_S = 100.0


class Fleet:
    """A coordinator with real workers, whose engines are fake and as fast as they are told to be."""

    def __init__(self, folder: Path, speeds: dict[str, float]) -> None:
        """`speeds`: worker -> seconds a step."""
        self.state = StateDir(folder / "state")
        self.state.make()
        self.broker = Broker(self.state, Processes(self.state))
        self.broker.start()
        self.ledger = Ledger.open(self.state)
        self.told: list[str] = []
        self.controller = Controller(ledger=self.ledger, dispatch=Dispatch(self.broker.url), tell=self.told.append)
        self.turn = Turn(self.controller, Watch(self.controller, self.broker))
        self.processes = [self._start(folder, worker, step_s) for worker, step_s in speeds.items()]

    def _start(self, folder: Path, worker: str, step_s: float) -> subprocess.Popen[bytes]:
        state = StateDir(folder / worker)
        state.make()
        self.broker.expect(worker)
        self.controller.add_member(Member(id=worker))
        command = [sys.executable, "-m", "worker.supervisor", "--broker", self.broker.url, "--worker-id", worker]
        command += ["--state", str(state.root), "--engine-command", ENGINE]
        env = {**os.environ, "PYTHONPATH": str(ROOT), "FAKE_CAP": "4", "FAKE_STEP_S": str(step_s)}
        with (state.logs / "out.log").open("ab") as out:
            return leash.start(command, log=out, env=env)

    def work(self, *, until: Callable[[], object]) -> None:
        """Turns until something is so."""
        deadline = time.monotonic() + LIMIT_S
        while not until():
            assert time.monotonic() < deadline, "\n".join(self.told)
            if not self.turn.once():
                time.sleep(IDLE_S)
            self.controller.assignments.validate()

    def begin(self) -> JobRun:
        """A job of equal rows, read to its end, once all workers are there."""
        self.work(until=lambda: all(member.beat for member in self.controller.members.values()))
        job = self.ledger.begin_job(spec())[0]
        rows = [row(n, max_tokens=TOKENS) for n in range(ROWS)]
        chunk = [replace(request(f"r{n}", line=n + 1), rows=(made,)) for n, made in enumerate(rows)]
        run = JobRun(job, self.ledger, lambda *_, **__: (), feed=Feed(iter([chunk])), signature="s")
        self.controller.add_job(run)
        self.work(until=lambda: (run.take_in(), run.read)[1])
        return run

    def answers(self, run: JobRun) -> list[str]:
        """The texts in input order."""
        return [part.text for each in self.ledger.answers(run.job.id) for part in each.parts]

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
            if process.stdin is not None:
                process.stdin.close()
        self.controller.dispatch.close()
        self.ledger.close()
        self.broker.stop()


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Callable[..., Fleet]]:
    made: list[Fleet] = []

    def make(**speeds: float) -> Fleet:
        made.append(Fleet(tmp_path, speeds))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_a_fast_worker_takes_the_rows_that_a_slow_one_would_not_come_to(fleet: Callable[..., Fleet]) -> None:
    """Alone with what it was sent first the slow one would take over a minute: 4 rows of 40 tokens take it 20 s."""
    started = fleet(slow=0.5, fast=0.01)
    run = started.begin()
    began = time.monotonic()
    started.work(until=run.done)
    took_s = time.monotonic() - began
    assert started.answers(run) == [answer(row(n, max_tokens=TOKENS).key) for n in range(ROWS)]
    started.ledger.validate()
    members = started.controller.members
    assert members["slow"].rows_done + members["fast"].rows_done == ROWS
    assert any("moved from slow to fast" in text for text in started.told), started.told
    assert any("of slow also sent to fast" in text for text in started.told), started.told
    assert took_s < 50, f"{took_s:.1f} s: {started.told}"
    assert not started.controller.assignments.flights
    slow = members["slow"]
    started.work(until=lambda: slow.beat is not None and not slow.beat.running and not slow.beat.waiting)
    assert slow.rows_done < ROWS / 4
    print(took_s, started.told)
