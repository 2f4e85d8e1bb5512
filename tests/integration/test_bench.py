"""`fleet bench` as a person runs it."""

import json
import signal
from pathlib import Path

import pytest

from tests.models import CONTEXT_TOKENS, tiny_llama
from tests.runner import Fleet, alive, children, wait_until

pytestmark = pytest.mark.mlx

FAST = ("--max-tokens", "6", "--prompt-tokens", "8", "--runs", "2")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    return Fleet(tmp_path)


def test_both_tables_are_printed_with_their_knees_and_what_run_will_do(fleet: Fleet, model: Path) -> None:
    told = fleet.run("bench", model, *FAST, "--long", "12", "--batch-sizes", "1,3").expect(0)
    assert "short: 6 new tokens after 8 of prompt" in told.out
    assert "long: 12 new tokens after 8 of prompt" in told.out
    assert told.out.count("<- knee") == 2
    batches = [line.split()[0] for line in told.out.splitlines() if line.strip()[:1].isdigit()]
    assert batches == ["1", "3", "1", "3"]
    assert "rows of up to 256 tokens together" in told.out
    assert "short, run 2 of 2, batch 3" in told.err
    assert (fleet.state.logs / "bench.log").read_text() == ""


def test_json_has_every_figure_and_nothing_else_is_said(fleet: Fleet, model: Path) -> None:
    told = fleet.run("bench", model, *FAST, "--batch-sizes", "2", "--json").expect(0)
    assert told.err == ""
    found = json.loads(told.out)
    (shown,) = found["tables"]
    (line,) = shown["lines"]
    assert (shown["name"], shown["knee"], line["batch"], line["runs"]) == ("short", 2, 2, 2)
    assert line["row_tps"] == pytest.approx(line["total_tps"] / 2)
    assert min(line["total_tps"], line["prompt_tps"], line["seconds"], line["peak_bytes"]) > 0
    assert len(found["hash"]) == 64
    (knee,) = found["knees"]
    assert knee["bucket_tokens"] == 256
    assert knee["rows"] >= 1


def test_what_was_measured_is_kept_and_measured_anew_on_request(fleet: Fleet, model: Path) -> None:
    said = "measuring the knee of rows up to 256 tokens"
    flags = (*FAST, "--batch-sizes", "1")
    told = fleet.run("bench", model, *flags).expect(0).err
    assert said in told
    for each in ("knee, batch 1: ", "knee, batch 2: ", "prompts, 1 together, "):
        assert each in told.partition(said)[2], "nobody waits in silence"
    kept = fleet.state.knees.read_text()
    assert said not in fleet.run("bench", model, *flags).expect(0).err
    assert fleet.state.knees.read_text() == kept
    assert said in fleet.run("bench", model, *flags, "--remeasure").expect(0).err
    assert fleet.state.knees.read_text() != kept


def test_without_batch_sizes_larger_ones_follow_until_nothing_is_gained(fleet: Fleet, model: Path) -> None:
    told = fleet.run("bench", model, "--max-tokens", "4", "--prompt-tokens", "4", "--runs", "1", "--json").expect(0)
    batches = [line["batch"] for line in json.loads(told.out)["tables"][0]["lines"]]
    assert batches[:6] == [1, 2, 4, 8, 12, 16]


def test_a_row_over_the_context_is_a_usage_error(fleet: Fleet, model: Path) -> None:
    told = fleet.run("bench", model, "--max-tokens", str(CONTEXT_TOKENS)).expect(2)
    assert f"over the model's context of {CONTEXT_TOKENS}" in told.err


def test_a_model_that_is_not_there_is_one_sentence(fleet: Fleet, tmp_path: Path) -> None:
    told = fleet.run("bench", tmp_path / "none").expect(1)
    assert told.err.splitlines()[-1].startswith("fleet: no model folder at")
    assert "Traceback" not in told.err


@pytest.mark.parametrize("flags", [("--runs", "0"), ("--batch-sizes", "1,x"), ("--batch-sizes", ""), ("--long", "-3")])
def test_wrong_flags_are_usage_errors(fleet: Fleet, model: Path, flags: tuple[str, ...]) -> None:
    fleet.run("bench", model, *flags).expect(2)


def test_a_picture_is_drawn(fleet: Fleet, model: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    fleet.run("bench", model, *FAST, "--batch-sizes", "1,2", "--plot", tmp_path / "bench.png").expect(0)
    assert (tmp_path / "bench.png").read_bytes().startswith(b"\x89PNG")


def test_ctrl_c_ends_the_child_too(fleet: Fleet, model: Path) -> None:
    process = fleet.start("bench", model, "--max-tokens", "400", "--runs", "50")
    (child,) = wait_until(lambda: children(process.pid), story="the child's start")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert "interrupted" in err
    assert "Traceback" not in err
    wait_until(lambda: not alive([child]), story="the child's end")


def test_ctrl_c_in_the_middle_of_a_knee_keeps_what_was_measured_of_it(fleet: Fleet, model: Path) -> None:
    # Nobody had said that a knee would be measured, and all of it was lost.
    process = fleet.start("bench", model, *FAST, "--batch-sizes", "1")
    wait_until(lambda: fleet.state.knees.exists(), story="a first sample that is kept")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert "after the tables the knees" in err.splitlines()[0]
    assert "<- knee" in out
    ((entry,),) = [json.loads(fleet.state.knees.read_text())["entries"].values()]
    (curve,) = entry["curves"]
    assert curve["samples"]
    assert not curve["prefill_ended"], "it was not interrupted in the middle"
    again = fleet.run("bench", model, *FAST, "--batch-sizes", "1").expect(0).err
    assert "knee, batch 1: " not in again


def test_a_killed_command_leaves_no_child(fleet: Fleet, model: Path) -> None:
    process = fleet.start("bench", model, "--max-tokens", "400", "--runs", "50")
    (child,) = wait_until(lambda: children(process.pid), story="the child's start")
    process.kill()
    process.communicate(timeout=20)
    wait_until(lambda: not alive([child]), within_s=20, story="the child's end")
