"""`fleet run` and the knee: measured on the way when a backlog is worth it, used by the next run."""

import json
from pathlib import Path

import pytest

from tests.models import tiny_llama
from tests.runner import Fleet, read_lines, write_prompts

pytestmark = pytest.mark.mlx


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("model") / "tiny")


def test_a_large_backlog_has_its_knee_measured_and_the_next_run_starts_there(tmp_path: Path, model: Path) -> None:
    fleet = Fleet(tmp_path)
    backlog = write_prompts(tmp_path / "in.jsonl", [f"the house met and heard number {n}" for n in range(2500)])
    # short answers: also on a busy machine a first window of them is long enough a queue to be worth a measurement
    command = ["run", "generate", backlog, "-m", model, "-o", fleet.out, "--max-tokens", "10"]
    told = fleet.run(*command)
    told.expect(0)
    assert all(line["error"] is None for line in read_lines(fleet.out))
    (entry,) = json.loads(fleet.state.knees.read_text())["entries"].values()
    assert [curve["bucket_tokens"] for curve in entry["curves"]] == [256]
    assert len(entry["curves"][0]["samples"]) >= 4

    before = fleet.state.knees.read_text()
    few = write_prompts(tmp_path / "few.jsonl", [f"the senate met and heard number {n}" for n in range(20)])
    report = fleet.run("run", "generate", few, "-m", model, "-o", tmp_path / "few.out", "--json").expect(0)
    assert json.loads(report.out)["done"] == 20
    assert fleet.state.knees.read_text() == before


def test_a_small_backlog_and_a_given_batch_measure_nothing(tmp_path: Path, model: Path) -> None:
    fleet = Fleet(tmp_path)
    for name, count, batch in (("few", 30, ()), ("many", 600, ("--batch", "8"))):
        backlog = write_prompts(tmp_path / f"{name}.jsonl", [f"{name} people met number {n}" for n in range(count)])
        command = ["run", "generate", backlog, "-m", model, "-o", tmp_path / f"{name}.out", "--max-tokens", "20"]
        fleet.run(*command, *batch).expect(0)
    assert not fleet.state.knees.exists()
