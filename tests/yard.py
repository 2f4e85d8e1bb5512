"""A fleet of real processes on this machine: one `fleet up`, and as many `fleet join` as a test wants."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from coordinator.client.fleet_client import FleetClient
from coordinator.client.whereabouts import Place
from coordinator.control.running import Running
from coordinator.ledger.ledger import Ledger
from fleet import token as tokens
from fleet.address import Address
from fleet.errors import FleetError
from tests.ports import free_port
from tests.runner import ROOT, Fleet, wait_until, write_prompts


class Process:
    """A command that runs; every line it prints is kept."""

    def __init__(self, args: list[str], env: Mapping[str, str], module: str = "fleet") -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", module, *args],
            cwd=ROOT,
            env=dict(env),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as stream:
            for line in stream:
                self.lines.append(line.rstrip("\n"))

    def end(self, number: int = signal.SIGKILL) -> int:
        """Ends it; its exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.send_signal(number)
        try:
            return self.process.wait(30)
        finally:
            self.process.kill()
            self._reader.join(5)


class Yard:
    """A fleet with fake engines; a context that ends all of it."""

    #: what is run in place of `fleet`
    module = "fleet"

    def __init__(self, folder: Path, **env: str) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        self.fleet = Fleet(folder, fake=True, env=env)
        self.state = self.fleet.state
        self.workers: dict[str, Process] = {}
        self.up_: Process | None = None
        #: of the gate, the same after each start
        self.port = free_port()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.workers.values():
            worker.end()
        if self.up_ is not None:
            self.up_.end()

    def up(self) -> Self:
        """Starts the coordinator, for this machine alone, and waits until it can be joined."""
        args = ["up", "--local", "--json", "--port", str(self.port), "--state-dir", str(self.state.root)]
        self.up_ = Process(args, self.fleet.env, self.module)
        self._await_up()
        return self

    def _await_up(self) -> None:
        up = self.up_
        assert up is not None
        wait_until(lambda: any("join" in line for line in up.lines) or up.process.poll() is not None)
        assert up.process.poll() is None, "\n".join(up.lines)

    @property
    def running(self) -> Running:
        """The coordinator."""
        found = Running.of(self.state)
        assert found is not None, "no coordinator runs"
        return found

    def join(self, name: str, **env: str) -> Process:
        """Starts a worker of this name, with a state folder of its own."""
        args = ["join", self.running.token, "--name", name, "--state-dir", str(self.folder / name)]
        self.workers[name] = Process(args, {**self.fleet.env, **env}, self.module)
        return self.workers[name]

    def rejoin(self, name: str, **env: str) -> Process:
        """Starts a worker again on what it kept."""
        args = ["join", "--name", name, "--state-dir", str(self.folder / name)]
        self.workers[name] = Process(args, {**self.fleet.env, **env}, self.module)
        return self.workers[name]

    # -- asking --------------------------------------------------------------------------------------

    def client(self) -> FleetClient:
        """A client of its API."""
        running = self.running
        here = Address("127.0.0.1", running.plain_port)
        return FleetClient.reach(Place(addresses=(here,), token=tokens.parse(running.token)[0], plain=True))

    def snapshot(self) -> dict[str, Any]:
        """The fleet now; empty while nobody answers."""
        try:
            with self.client() as client:
                found: dict[str, Any] = client.get("/fleet/status")
                return found
        except (FleetError, AssertionError):
            return {}

    def mac(self, name: str) -> dict[str, Any]:
        """One worker's line, empty when there is none."""
        return next((mac for mac in self.snapshot().get("macs", ()) if mac["name"] == name), {})

    def job(self, number: int) -> dict[str, Any]:
        """One job's line, empty when there is none."""
        return next((job for job in self.snapshot().get("jobs", ()) if job["id"] == number), {})

    def events(self) -> list[str]:
        """What happened, oldest first."""
        return [event["text"] for event in self.snapshot().get("events", ())]

    def await_event(self, text: str, within_s: float = 60.0) -> float:
        """Waits until an event has `text`; when it happened, unix seconds."""
        found = wait_until(
            lambda: [e["at"] for e in self.snapshot().get("events", ()) if text in e["text"]],
            within_s=within_s,
            story=f"{text!r} among {self.events()}",
        )
        return float(found[-1])

    # -- jobs ----------------------------------------------------------------------------------------

    def submit(self, name: str, model: Path, rows: int, *flags: str, said: str = "") -> int:
        """A job of `rows` prompts, each another unless `said` is the same; its id."""
        backlog = write_prompts(self.folder / f"{name}.jsonl", [f"{said or name} {n}" for n in range(rows)])
        args = ["submit", "generate", backlog, "-m", model, "--json", *flags]
        return int(json.loads(self.fleet.run(*args).expect(0).out)["id"])

    def await_state(self, job: int, state: str, within_s: float = 60.0) -> None:
        """Waits until a job is in this state."""
        wait_until(lambda: self.job(job).get("state") == state, within_s=within_s, story=f"job {job} {state}")

    def await_done(self, job: int, rows: int, within_s: float = 60.0) -> None:
        """Waits until so many requests of a job are done."""
        wait_until(lambda: self.fleet.counts(job).done >= rows, within_s=within_s, story=f"{rows} rows of job {job}")

    def answers(self, job: int) -> list[str | None]:
        """The texts of a job in input order, None where there is none."""
        with Ledger.read(self.state) as ledger:
            ledger.validate()
            return [answer.parts[0].text if answer.parts else None for answer in ledger.answers(job)]

    def computed(self) -> list[str]:
        """Keys of all rows that engines finished."""
        return [key for path in self.folder.glob("**/engine.keys") for key in path.read_text().split()]
