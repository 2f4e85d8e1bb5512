"""A fleet on hosts in namespaces: real `fleet up` and `fleet join`, real TLS, engines fake or real."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from coordinator.ledger.ledger import Ledger
from fleet.config import StateDir
from tests.hosts import Host
from tests.runner import ROOT

ENGINE = json.dumps([sys.executable, str(ROOT / "tests" / "noting_engine.py")])


class Command:
    """A `fleet` command that runs on a host; what it prints is kept."""

    def __init__(self, host: Host, *args: object, state: Path, **env: str) -> None:
        command = [sys.executable, "-m", "fleet", *map(str, args), "--state-dir", str(state)]
        # A session of its own, as with a terminal's foreground job that a closed lid does not end.
        self.process = host.popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=env, start_new_session=True
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def says(self, text: str, within_s: float = 60.0) -> str:
        """Waits for a line with `text`; that line."""
        return str(until(lambda: next((line for line in self.lines if text in line), None), within_s, self._story))

    def ends(self, within_s: float = 60.0) -> int:
        """Waits for its end; the exit code."""
        status = self.process.wait(within_s)
        self._reader.join(5)
        return status

    def signal(self, number: int) -> None:
        """Sends a signal to the command and everything it started, as what befalls a whole machine does."""
        for pid in descendants(self.process.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    @property
    def output(self) -> str:
        """All of it so far."""
        return "\n".join(self.lines)

    def _story(self) -> str:
        return f"exit {self.process.poll()}; it said:\n{self.output}"

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as stream:
            for line in stream:
                self.lines.append(line.rstrip())


class HostFleet:
    """A coordinator and workers; the state folder of each is named after its host."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.token = ""
        self._commands: list[Command] = []

    def state(self, host: Host) -> StateDir:
        """A host's."""
        return StateDir(self.folder / host.name)

    def start(self, host: Host, *args: object, **env: str) -> Command:
        """A command on a host."""
        engine = {"FLEET_TEST_ENGINE": ENGINE, "FAKE_ADMITTED": str(self._notes(host))} if "fake" in env else {}
        env.pop("fake", None)
        state = self.state(host).root
        self._commands.append(Command(host, *args, state=state, **{**engine, **env}))
        return self._commands[-1]

    def up(self, host: Host, *flags: object, **env: str) -> Command:
        """The coordinator, once it is up; `token` is then known, without an address."""
        command = self.start(host, "up", "--name", host.name, *flags, **env)
        self.token = command.says("fleet join fl1-").split()[-1].partition("@")[0]
        return command

    def join(self, host: Host, *flags: object, token: str | None = None, **env: str) -> Command:
        """A worker that wants to join."""
        words = [self.token if token is None else token, *flags]
        return self.start(host, "join", *filter(None, words), "--name", host.name, **env)

    def run(self, host: Host, *args: object, **env: str) -> Command:
        """A command to its end."""
        command = self.start(host, *args, **env)
        command.ends(90)
        return command

    def snapshot(self, host: Host) -> Any:
        """`fleet status --json` on the coordinator's host."""
        return json.loads(self.run(host, "status", "--json").output)

    def admitted(self, host: Host) -> dict[str, float]:
        """Of the rows that a host's engines admitted: when, at last."""
        try:
            lines = self._notes(host).read_text().split("\n")
        except FileNotFoundError:
            return {}
        pairs = [line.split() for line in lines[:-1]]
        return {key: float(at) for key, at in pairs}

    def finished(self, host: Host) -> set[str]:
        """Keys of the rows that a host's engines finished."""
        paths = self.state(host).root.rglob("engine.keys")
        return {key for path in paths for key in path.read_text().split()}

    def running(self, host: Host) -> set[str]:
        """Keys of the rows in a host's batch."""
        return set(self.admitted(host)) - self.finished(host)

    def validate(self, host: Host) -> None:
        """Checks the coordinator's ledger."""
        with Ledger.read(self.state(host)) as ledger:
            ledger.validate()

    def close(self) -> None:
        """Ends what runs, at once."""
        for command in self._commands:
            if command.process.poll() is None:
                command.signal(signal.SIGKILL)
            command.ends()

    def _notes(self, host: Host) -> Path:
        return self.folder / f"{host.name}.admitted"


def until(what: Callable[[], Any], within_s: float = 60.0, story: Callable[[], str] = str) -> Any:
    """Waits until `what()` is true; its value."""
    deadline = time.monotonic() + within_s
    while not (value := what()):
        assert time.monotonic() < deadline, f"not within {within_s:g} s; {story()}"
        time.sleep(0.02)
    return value


def descendants(pid: int) -> list[int]:
    """A process and all below it."""
    found = [pid]
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == pid and fields[0] not in "ZX":
            found += descendants(int(path.parent.name))
    return found
