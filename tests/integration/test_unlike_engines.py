"""Two engines with MLX on one machine, one of them stopped two thirds of the time: both work almost to the end."""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from fleet import pids
from tests.models import tiny_llama
from tests.runner import Fleet
from tests.yard import Yard

pytestmark = [pytest.mark.mlx, pytest.mark.soak, pytest.mark.timeout(900)]

ROWS = 12_000
#: The slow engine runs so long, and is then stopped so long, seconds.
ON_S, OFF_S = 0.1, 0.2
#: How much earlier one of them may have nothing left, as a share of the whole time.
IDLE = 0.03


class MlxYard(Yard):
    """A fleet whose engines are real."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.fleet = Fleet(folder)
        self.state = self.fleet.state


@contextmanager
def slowed(folder: Path) -> Iterator[None]:
    """The engine of the worker of this folder runs a third of the time."""
    ended = threading.Event()

    def stop_and_go() -> None:
        while not ended.wait(ON_S):
            started = [process for path in folder.glob("**/pids") for process in pids.read(path)]
            engines = [process.pid for process in started if process.role == "engine"]
            for number, pause_s in ((signal.SIGSTOP, OFF_S), (signal.SIGCONT, 0.0)):
                for pid in engines:
                    with suppress(ProcessLookupError):
                        os.kill(pid, number)
                time.sleep(pause_s)

    thread = threading.Thread(target=stop_and_go)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def finished(yard: Yard, name: str) -> tuple[int, float]:
    """(rows its engine has finished, when it finished the last one)."""
    (log,) = (yard.folder / name).glob("**/engine.keys")
    return len(log.read_text().split()), log.stat().st_mtime


def backlog(path: Path) -> Path:
    draw = random.Random(7)
    lines = [{"id": f"r{n}", "prompt": f"the states {n}", "max_tokens": draw.randint(16, 160)} for n in range(ROWS)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_both_engines_are_busy_until_the_last_three_per_cent_of_the_time(tmp_path: Path) -> None:
    model = tiny_llama(tmp_path / "model")
    with MlxYard(tmp_path / "yard") as yard:
        yard.up()
        for name in ("fast", "slow"):
            yard.join(name)
        for name in ("fast", "slow"):
            yard.await_event(f"{name} is here", within_s=60)
        with slowed(yard.folder / "slow"):
            args = ["submit", "generate", backlog(tmp_path / "in.jsonl"), "-m", model, "--json"]
            job = int(json.loads(yard.fleet.run(*args).expect(0).out)["id"])
            began = time.time()
            yard.await_state(job, "finished", within_s=800)
        assert len(set(yard.answers(job))) > ROWS / 2
        ends = {name: finished(yard, name) for name in ("fast", "slow")}
        took_s = max(at for _, at in ends.values()) - began
        shares = {name: rows for name, (rows, _) in ends.items()}
        idle = {name: (began + took_s - at) / took_s for name, (_, at) in ends.items()}
        print(f"{took_s:.1f} s, rows {shares}, idle at the end {idle}, events {yard.events()[-8:]}")
        assert shares["slow"] < 0.6 * shares["fast"], shares
        assert max(idle.values()) < IDLE, idle
