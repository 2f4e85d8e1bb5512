"""`fleet status` and `fleet plan` of a fleet: the real API over TLS, a real terminal, a made-up snapshot."""

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from coordinator.control.running import Running
from tests import snapshots
from tests.api_fleet import ApiFleet
from tests.models import tiny_llama
from tests.runner import ROOT, Fleet, write_prompts

SHOWN = snapshots.fleet(8)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture
def served(tmp_path: Path, model: Path) -> Iterator[ApiFleet]:
    with ApiFleet(tmp_path, model, tls=True) as api:
        api.service.snapshot = lambda: SHOWN  # type: ignore[method-assign]
        yield api


@pytest.fixture
def fleet(tmp_path: Path, served: ApiFleet) -> Fleet:
    """Commands of another Mac that knows address and token."""
    port = served.server.port
    token = served.service.key.format()
    return Fleet(tmp_path, env={"FLEET_COORDINATOR": f"127.0.0.1:{port - 1}", "FLEET_TOKEN": token})


def test_the_snapshot_comes_from_the_coordinator(fleet: Fleet) -> None:
    told = json.loads(fleet.run("status", "--json").expect(0).out)
    assert told == json.loads(json.dumps(asdict(SHOWN)))
    text = fleet.run("status", "--watts", "60", "--price", "0.3", env={"COLUMNS": "200"}).expect(0).out
    assert all(name in text for name in ("mini-kitchen", "present: wrong token", "COST/1M", "12,345/100,000"))
    assert max(map(len, text.splitlines())) <= 200


def test_the_brokers_queues_are_told_by_the_coordinator(fleet: Fleet) -> None:
    assert fleet.run("status", "--rq").expect(0).out == "m1: 2 waiting, 0 being taken, 1 wip\n"


def test_a_coordinator_of_another_form_is_refused_with_what_to_do(fleet: Fleet, served: ApiFleet) -> None:
    served.service.snapshot = lambda: replace(SHOWN, schema=99)  # type: ignore[method-assign]
    ended = fleet.run("status").expect(1)
    assert (ended.out, "bring both to one version" in ended.err) == ("", True)


def test_local_shows_this_macs_run_and_not_the_fleet(fleet: Fleet) -> None:
    fleet.run("status", "--local").expect(5)


def test_a_plan_shares_the_backlog_among_the_macs_that_know_the_model(
    fleet: Fleet, served: ApiFleet, model: Path, tmp_path: Path
) -> None:
    macs = tuple(
        replace(snapshots.mac(number), model=str(model), measured_tps=tps) for number, tps in ((0, 3000.0), (1, 1000.0))
    )
    served.service.snapshot = lambda: replace(SHOWN, macs=(*macs, *SHOWN.macs[2:]))  # type: ignore[method-assign]
    backlog = write_prompts(tmp_path / "in.jsonl", [f"number {n}" for n in range(400)])
    asked = ["plan", backlog, "-m", model, "--watts", "studio=270,mbp-anna=60"]
    plan = json.loads(fleet.run(*asked, "--json").expect(0).out)
    assert [(part["name"], part["rows"]) for part in plan["parts"]] == [("studio", 300), ("mbp-anna", 100)]
    assert plan["kwh"] == pytest.approx(330 * plan["seconds"][1] / 3.6e6)
    assert "75% studio: 300 rows" in fleet.run(*asked).expect(0).out
    assert "fleet bench" in fleet.run(*asked, "--local").expect(2).err
    served.service.snapshot = lambda: SHOWN  # type: ignore[method-assign]
    assert "--local plans for this Mac" in fleet.run(*asked).expect(2).err


class Terminal:
    """`fleet status` in a terminal of its own."""

    def __init__(self, fleet: Fleet, rows: int, columns: int) -> None:
        self._fd, far = pty.openpty()
        fcntl.ioctl(far, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        command = [sys.executable, "-m", "fleet", "status", "--state-dir", str(fleet.state.root)]
        env = {**fleet.env, "TERM": "xterm-256color"}
        for name in ("COLUMNS", "LINES", "NO_COLOR"):
            env.pop(name, None)
        self.process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=env,
            stdin=far,
            stdout=far,
            stderr=far,
            # what a shell started in the background may ignore
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
        os.close(far)
        self.seen = ""

    def wait_for(self, pattern: str, within_s: float = 60.0) -> None:
        deadline = time.monotonic() + within_s
        while not re.search(pattern, self.seen):
            assert time.monotonic() < deadline, f"no {pattern!r} in {self.seen[-3000:]!r}"
            self._read()

    def interrupt(self) -> int:
        self.process.send_signal(signal.SIGINT)
        while self._read():
            pass
        os.close(self._fd)
        return self.process.wait(20)

    def _read(self) -> bool:
        if not select.select([self._fd], [], [], 1.0)[0]:
            return self.process.poll() is None
        try:
            data = os.read(self._fd, 65536)
        except OSError:  # Linux says so when the other end is closed
            return False
        self.seen += data.decode(errors="replace")
        return bool(data)


def test_on_a_terminal_it_is_drawn_again_tells_of_silence_and_leaves_at_ctrl_c(tmp_path: Path, model: Path) -> None:
    fleet = Fleet(tmp_path)
    fleet.state.make()
    with ApiFleet(tmp_path / "here", model) as api:
        began = time.time()
        api.service.snapshot = lambda: replace(  # type: ignore[method-assign]
            SHOWN, started=0.1, now=0.1 + time.time() - began
        )
        running = Running.here(port=1, plain_port=api.server.port, token=api.service.key.format())
        running.keep(fleet.state)
        terminal = Terminal(fleet, 24, 80)
        terminal.wait_for("mini-kitchen")
        terminal.wait_for(r"up 0:(0[2-9]|[1-9])")
        assert "\x1b[?1049h" in terminal.seen  # a screen of its own
        api.server.stop()
        terminal.wait_for(r"as of \d+:\d\d ago: the")
        assert terminal.interrupt() == 0
    _, _, after = terminal.seen.partition("\x1b[?1049l")
    assert "mini-kitchen" in after  # the last view stays, and when it was seen
    assert "as of" in after
    assert "Traceback" not in terminal.seen
