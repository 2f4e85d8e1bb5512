"""Odd inputs, names and folders: the rest of the backlog runs, and what is wrong is one sentence."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis

from coordinator.broker.broker import Broker, connect
from coordinator.control.processes import Processes
from fleet import keys
from fleet.config import StateDir
from tests.models import tiny_llama
from tests.runner import Fleet, read_lines, wait_until, write_prompts


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("model") / "tiny")


@contextmanager
def foreign_redis(state: StateDir) -> Iterator[tuple[redis.Redis, str]]:
    """A client of a Redis that a person brought, and its address."""
    server = Broker(state, Processes(state))
    server.start()
    try:
        with connect(server.url) as client:
            client.delete(keys.EPOCH)
            yield client, server.url
    finally:
        server.stop()


def test_one_line_nested_deep_does_not_end_the_run(tmp_path: Path, model: Path) -> None:
    # 983 deep passed intake, and the output could not be written: a traceback, and so again with every rerun.
    fleet = Fleet(tmp_path, fake=True)
    deep = '{"prompt": "x", "deep": ' + "[" * 983 + "]" * 983 + "}"
    (tmp_path / "in.jsonl").write_text(deep + '\n{"prompt": "fine", "kept": [[1]]}\n')
    fleet.run("run", "generate", tmp_path / "in.jsonl", "-m", model, "-o", fleet.out, "--max-tokens", "2").expect(3)
    first, second = read_lines(fleet.out)
    assert first["error"].startswith("JSON nested too deeply")
    assert (second["error"], second["kept"]) == (None, [[1]])


def test_a_folder_with_odd_files_runs_and_its_job_is_listed(tmp_path: Path, model: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    Path(os.fsdecode(os.fsencode(folder) + b"/caf\xe9.txt")).write_text("hello there")
    (folder / "fine.txt").write_text("fine text")
    (folder / "link.txt").symlink_to("nothing")
    os.mkfifo(folder / "pipe.txt")
    fleet = Fleet(tmp_path, fake=True)
    output = os.fsdecode(os.fsencode(tmp_path) + b"/\xe9.jsonl")
    command = ["run", "generate", folder, "-m", model, "-o", output, "--max-tokens", "2"]
    fleet.run(*command).expect(3)
    lines = read_lines(Path(output))
    assert [line["id"] for line in lines] == [r"caf\xe9.txt", "fine.txt", "link.txt", "pipe.txt"]
    assert [line["error"] is None for line in lines] == [True, True, False, False]
    failed = read_lines(Path(f"{output}.errors.jsonl"))
    assert [line["source"] for line in failed] == [f"{folder}/link.txt", f"{folder}/pipe.txt"]
    assert r"\udce9.jsonl" in fleet.run("jobs").expect(0).out
    assert json.loads(fleet.run("jobs", "--json").expect(0).out)[0]["output"] == output
    fleet.validate()


@pytest.mark.parametrize(
    ("place", "sentence"), [("file", "File exists"), ("file/under", "Not a directory"), ("n" * 300, "too long")]
)
def test_a_state_folder_that_cannot_be_is_a_sentence(tmp_path: Path, model: Path, place: str, sentence: str) -> None:
    (tmp_path / "file").write_text("")
    source = write_prompts(tmp_path / "in.jsonl", ["x"])
    fleet = Fleet(tmp_path)
    fleet.state = StateDir(tmp_path / place)
    ended = fleet.run("run", "generate", source, "-m", model, "-o", fleet.out)
    assert ended.status in (1, 2)
    assert ended.err.count("\n") == 1
    assert sentence in ended.err
    for command in (["jobs"], ["results", "1"], ["cancel", "1"], ["clean"], ["clean", "1"]):
        ended = fleet.run(*command)
        assert ended.status in (0, 1, 2)
        assert ended.err.count("\n") <= 1, ended.err


def test_a_state_folder_of_any_bytes_works(tmp_path: Path, model: Path) -> None:
    # The broker's configuration could not be written: a traceback.
    odd = os.fsdecode(os.fsencode(tmp_path) + b"/\xff")
    fleet = Fleet(tmp_path, fake=True)
    fleet.state = StateDir(Path(odd))
    source = write_prompts(tmp_path / "in.jsonl", ["x"])
    command = ["run", "generate", source, "-m", model, "-o", fleet.out, "--max-tokens", "2"]
    fleet.run(*command).expect(0)
    fleet.run("jobs").expect(0)


@pytest.mark.parametrize("number", ["99999999999999999999", "9" * 5000, "0"])
@pytest.mark.parametrize("command", ["results", "cancel", "clean"])
def test_a_huge_job_number_is_a_sentence(tmp_path: Path, command: str, number: str) -> None:
    ended = Fleet(tmp_path).run(command, number).expect(2)
    assert "expected a job's number" in ended.err
    assert ended.err.count("\n") == 1


@pytest.mark.parametrize("flags", [("", "-m", "m", "-o", "o"), ("i", "-m", "", "-o", "o"), ("i", "-m", "m", "-o", "")])
def test_an_empty_name_is_a_wrong_flag(tmp_path: Path, flags: tuple[str, ...]) -> None:
    assert "found an empty name" in Fleet(tmp_path).run("run", "generate", *flags).expect(2).err


def test_a_killed_run_is_taken_up_in_a_redis_of_ones_own(tmp_path: Path, model: Path) -> None:
    # The next run refused the Redis as another fleet's, until a person had deleted our keys.
    with foreign_redis(StateDir(tmp_path / "theirs")) as (client, url):
        fleet = Fleet(tmp_path, fake=True, env={"FAKE_STEP_S": "0.05"})
        fleet.env["FLEET_REDIS_URL"] = url
        source = write_prompts(tmp_path / "in.jsonl", [f"hello {number}" for number in range(64)])
        command = ["run", "generate", source, "-m", model, "-o", fleet.out, "--max-tokens", "10"]
        process = fleet.start(*command)
        wait_until(lambda: fleet.counts().done, story="an answer")
        process.kill()
        process.communicate()
        assert client.keys("fleet:*")
        fleet.run(*command).expect(0)
        assert fleet.counts().done == 64
        assert client.keys("*") == []
