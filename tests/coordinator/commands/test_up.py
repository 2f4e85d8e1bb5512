"""`fleet up` and `fleet down`: what they print, what they leave, and what goes on afterwards."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.control.running import Running
from fleet.token import PREFIX
from tests.models import tiny_llama
from tests.runner import Fleet, alive, children, read_lines, wait_until, write_prompts

#: Of a job that takes 12 s, so that `fleet down` comes before its end.
ROWS = 240


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    fleet = Fleet(tmp_path, fake=True, env={"FAKE_STEP_S": "0.02"})
    yield fleet
    if Running.of(fleet.state) is not None:
        fleet.run("down").expect(0)


def test_a_detached_fleet_is_up_when_the_command_returns_and_drains_when_it_is_told_to_end(
    fleet: Fleet, model: Path, tmp_path: Path
) -> None:
    up = ("up", "--local", "--work", "--detach", "--port", "0")
    told = json.loads(fleet.run(*up, "--json").expect(0).out)
    assert told["join"] == f"fleet join {told['token']}"
    running = Running.of(fleet.state)
    assert running is not None
    refused = fleet.run(*up).expect(1).err
    assert "works on" in refused, "one coordinator a folder"
    assert "`fleet submit` gives it work, `fleet down` ends it" in refused
    secret = told["token"].partition("@")[0]
    logs = [path.read_text(errors="replace") for path in fleet.state.logs.iterdir()]
    assert not any(secret in text for text in logs)
    lines = [Path(f"/proc/{pid}/cmdline").read_bytes().decode() for pid in [running.pid, *children(running.pid)]]
    assert not any(secret in line or "password" in line for line in lines)

    backlog = write_prompts(tmp_path / "in.jsonl", [f"the states were told {n}" for n in range(ROWS)])
    submit = ("submit", "generate", backlog, "-m", model, "--max-tokens", "20", "--json")
    job = int(json.loads(fleet.run(*submit).expect(0).out)["id"])
    wait_until(lambda: fleet.counts(job).done >= 8, story="eight rows done")
    family = [running.pid, *children(running.pid)]
    assert fleet.run("down").expect(0).out == "the fleet is down\n"
    assert (alive(family), Running.of(fleet.state)) == ([], None)
    assert 8 <= fleet.counts(job).done < ROWS, "the batch was finished, and no more"
    fleet.validate()

    fleet.run(*up).expect(0)
    out = tmp_path / "out.jsonl"
    wait_until(lambda: fleet.counts(job).open == 0, story="the job went on")
    wait_until(lambda: '"finished"' in fleet.run("jobs", "--json").out, story="the job finished")
    fleet.run("results", str(job), "-o", out).expect(0)
    assert len(read_lines(out)) == ROWS
    assert len(set(fleet.computed())) == len(fleet.computed()) == ROWS, "nothing was computed twice"
    fleet.validate()


def test_ending_no_fleet_is_told(fleet: Fleet) -> None:
    assert "nothing to end" in fleet.run("down").expect(5).err


def test_a_port_that_is_taken_is_one_sentence(fleet: Fleet) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for detach in ((), ("--detach",)):
            ended = fleet.run("up", "--local", "--port", port, *detach).expect(1)
            assert f"port {port} cannot be opened" in ended.err
            assert PREFIX not in ended.out
    assert len(ended.err.splitlines()) == 1
