"""What a person sees of a job before, while and after it runs."""

import json
from pathlib import Path

import pytest

from tests.models import tiny_llama
from tests.runner import Fleet, read_lines, wait_until, write_prompts


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("model") / "tiny")


def states(fleet: Fleet) -> list[str]:
    return [job["state"] for job in json.loads(fleet.run("jobs", "--json").expect(0).out)]


def test_a_killed_job_is_interrupted_and_can_be_forgotten(tmp_path: Path, model: Path) -> None:
    fleet = Fleet(tmp_path, fake=True, env={"FAKE_STEP_S": "0.1"})
    backlog = write_prompts(tmp_path / "in.jsonl", [f"the states were told {n}" for n in range(100)])
    process = fleet.start("run", "generate", backlog, "-m", model, "-o", fleet.out, "--max-tokens", "20")
    wait_until(lambda: fleet.counts().requests, story="intake")
    assert states(fleet) == ["running"]
    refused = fleet.run("clean", "1").expect(1)
    assert f"pid {process.pid}" in refused.err
    process.kill()
    process.communicate()
    assert states(fleet) == ["interrupted"]
    assert "1 interrupted job kept" in fleet.run("clean").expect(0).out
    assert "1 job, 100 requests" in fleet.run("clean", "1").expect(0).out
    assert states(fleet) == []


def test_a_dry_run_finds_what_the_run_then_fails_on(tmp_path: Path, model: Path) -> None:
    fleet = Fleet(tmp_path, fake=True)
    (tmp_path / "a.jsonl").write_text('{"id": "a", "prompt": "yes", "model": "other"}\n{"id": "a", "prompt": "no"}\n')
    (tmp_path / "b.jsonl").write_text('{"id": "a", "prompt": "no", "day": 3}\nnot JSON\n')
    files = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    command = ["run", "generate", *files, "-m", model, "-o", fleet.out, "--max-tokens", "4"]
    told = fleet.run(*command, "--dry-run").expect(3)
    assert told.out.startswith("4 requests, 1 row, ")
    assert f"2 x custom_id 'a' was already used at {files[0]}:1 (first: a, {files[0]}:2)" in told.out
    assert 'warning: -m wins over body.model "other" (1 line)' in told.err
    dry = json.loads(fleet.run(*command, "--dry-run", "--json").expect(3).out)
    assert len(dry["warnings"]) == 1

    fleet.run(*command).expect(3)
    failed = read_lines(Path(f"{fleet.out}.errors.jsonl"))
    assert [f"{line['source']}: {line['error']}" for line in failed] == dry["errors"]
    assert [line["id"] for line in failed] == ["a", "a", None]
    assert read_lines(fleet.out)[2]["day"] == 3
