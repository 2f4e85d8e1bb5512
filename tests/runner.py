"""Runs the `fleet` command as a process of its own, on a state folder of its own, and looks into what it left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from coordinator.control.processes import read as read_pids
from coordinator.control.processes import start_time
from coordinator.ledger.ledger import Ledger
from coordinator.records import Counts
from fleet.config import StateDir
from fleet.errors import FleetError

ROOT = Path(__file__).parent.parent
FAKE_ENGINE = json.dumps([sys.executable, str(ROOT / "tests" / "fake_engine.py")])


def wait_until(what: Callable[[], Any], *, within_s: float = 60.0, story: str = "it") -> Any:
    """Waits until `what()` is true and gives it back; AssertionError after `within_s`."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if found := what():
            return found
        time.sleep(0.02)
    raise AssertionError(f"{story} did not happen within {within_s:g} s")


def write_prompts(path: Path, prompts: Iterable[str], **fields: Any) -> Path:
    """A flat JSONL backlog with ids r0, r1, ..."""
    with path.open("w") as file:
        for number, prompt in enumerate(prompts):
            file.write(json.dumps({"id": f"r{number}", "prompt": prompt, **fields}) + "\n")
    return path


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().split("\n") if line]


class Fleet:
    """`fleet` commands over one state folder."""

    def __init__(self, folder: Path, *, fake: bool = False, env: Mapping[str, str] | None = None) -> None:
        self.state = StateDir(folder / "state")
        self.out = folder / "out.jsonl"
        self.env = {**os.environ, **({"FLEET_TEST_ENGINE": FAKE_ENGINE} if fake else {}), **(env or {})}
        self.env.pop("FLEET_REDIS_URL", None)

    def start(self, *args: str | Path, env: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
        """Starts a command; its stderr and stdout are pipes."""
        command = [sys.executable, "-m", "fleet", *map(str, args), "--state-dir", str(self.state.root)]
        return subprocess.Popen(
            command,
            cwd=ROOT,
            env={**self.env, **(env or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )

    def run(self, *args: str | Path, env: Mapping[str, str] | None = None, timeout_s: float = 100.0) -> Ended:
        """Runs a command to its end."""
        process = self.start(*args, env=env)
        try:
            out, err = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            raise AssertionError(f"fleet {' '.join(map(str, args))} took over {timeout_s} s:\n{err[-3000:]}") from None
        return Ended(process.returncode, out, err)

    def counts(self, job: int = 1) -> Counts:
        """How far a job is, read beside a running process; empty before there is one."""
        try:
            ledger = Ledger.read(self.state)
        except FleetError:
            return Counts()
        try:
            return ledger.counts(job)
        except FleetError:
            return Counts()
        finally:
            ledger.close()

    def validate(self) -> None:
        """Checks the ledger's invariants."""
        with Ledger.read(self.state) as ledger:
            ledger.validate()

    def computed(self) -> list[str]:
        """Keys of the rows that engines finished, in order, as they logged them."""
        path = self.state.logs / "engine.keys"
        return path.read_text().split() if path.exists() else []

    def pids(self, role: str | None = None) -> list[int]:
        """Recorded processes that run, of one role or of all."""
        return [
            started.pid
            for started in read_pids(self.state.pids)
            if start_time(started.pid) == started.started and role in (None, started.role)
        ]


class Ended:
    """A command that ended."""

    def __init__(self, status: int, out: str, err: str) -> None:
        self.status = status
        self.out = out
        self.err = err

    def expect(self, status: int) -> Ended:
        assert self.status == status, f"exit {self.status}, expected {status}\n{self.out}\n{self.err[-3000:]}"
        return self


def children(pid: int) -> list[int]:
    """Process ids of a process's children, deep."""
    found: list[int] = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == pid and fields[0] not in "ZX":
            child = int(path.parent.name)
            found += [child, *children(child)]
    return found


def alive(pids: Sequence[int]) -> list[int]:
    """Those of `pids` that still run."""
    return [pid for pid in pids if start_time(pid) is not None]
