"""`fleet run` end to end with a real model: broker, agent, MLX engine, ledger, output file."""

import json
from pathlib import Path

import pytest

from tests.models import tiny_llama
from tests.runner import Fleet, read_lines, write_prompts

pytestmark = pytest.mark.mlx

PROMPTS = [f"the senate met {'and the house met ' * (n % 7)}number {n}" for n in range(40)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("model") / "tiny")


def test_every_prompt_has_its_answer_in_input_order_and_a_rerun_computes_nothing(tmp_path: Path, model: Path) -> None:
    fleet = Fleet(tmp_path)
    backlog = write_prompts(tmp_path / "in.jsonl", PROMPTS, topic="history")
    command = ["run", "generate", backlog, "-m", model, "-o", fleet.out, "--max-tokens", "12", "--batch", "8", "--json"]
    report = json.loads(fleet.run(*command).expect(0).out)
    lines = read_lines(fleet.out)
    assert [line["id"] for line in lines] == [f"r{n}" for n in range(40)]
    assert all(line["text"] and line["error"] is None and line["topic"] == "history" for line in lines)
    assert len({line["text"] for line in lines}) > 30
    assert report["done"] == 40
    assert report["computed_rows"] == 40
    assert report["mean_batch"] > 4
    assert len(fleet.computed()) == 40
    assert fleet.pids() == []

    before = fleet.out.read_bytes()
    again = json.loads(fleet.run(*command).expect(0).out)
    assert again["computed_rows"] == 0
    assert len(fleet.computed()) == 40
    assert fleet.out.read_bytes() == before
    fleet.validate()


def test_batched_answers_equal_those_of_a_batch_of_one(tmp_path: Path, model: Path) -> None:
    backlog = write_prompts(tmp_path / "in.jsonl", PROMPTS[:12])
    answers = []
    for batch in ("1", "6"):
        fleet = Fleet(tmp_path / batch)
        fleet.out.parent.mkdir()
        command = ["run", "generate", backlog, "-m", model, "-o", fleet.out, "--max-tokens", "16", "--batch", batch]
        fleet.run(*command).expect(0)
        answers.append([line["text"] for line in read_lines(fleet.out)])
    assert answers[0] == answers[1]


def test_a_bad_line_is_an_error_with_its_place_and_the_rest_runs(tmp_path: Path, model: Path) -> None:
    fleet = Fleet(tmp_path)
    backlog = tmp_path / "in.jsonl"
    backlog.write_text('{"id": "a", "prompt": "yes"}\n{"id": "b", "prompt"\n{"id": "a", "prompt": "no"}\n')
    ended = fleet.run("run", "generate", backlog, "-m", model, "-o", fleet.out, "--max-tokens", "4").expect(3)
    errors = read_lines(Path(f"{fleet.out}.errors.jsonl"))
    assert [error["source"] for error in errors] == [f"{backlog}:2", f"{backlog}:3"]
    assert "already used" in errors[1]["error"]
    assert "2 failed" in ended.out
    fleet.validate()


def test_classify_answers_with_labels_only(tmp_path: Path, model: Path) -> None:
    fleet = Fleet(tmp_path)
    backlog = write_prompts(tmp_path / "in.jsonl", PROMPTS[:10])
    command = ["run", "classify", backlog, "-m", model, "-o", fleet.out, "--labels", "positive,negative,very negative"]
    fleet.run(*command).expect(0)
    assert {line["label"] for line in read_lines(fleet.out)} <= {"positive", "negative", "very negative"}
    assert all(line["finish_reason"] == "stop" for line in read_lines(fleet.out))


def test_a_text_over_the_context_is_summarized_in_parts(tmp_path: Path, model: Path) -> None:
    fleet = Fleet(tmp_path)
    long = " ".join(f"The senate met on day {n}." for n in range(200))
    backlog = write_prompts(tmp_path / "in.jsonl", ["The house met.", long])
    command = ["run", "summarize", backlog, "-m", model, "-o", fleet.out, "--max-tokens", "40"]
    fleet.run(*command).expect(0)
    lines = read_lines(fleet.out)
    assert [line["id"] for line in lines] == ["r0", "r1"]
    assert all(line["text"] for line in lines)
    assert len(fleet.computed()) > 3
    fleet.validate()

    fleet.run(*command, "--no-split").expect(3)
    (error,) = read_lines(Path(f"{fleet.out}.errors.jsonl"))
    assert "512" in error["error"]


def test_openai_lines_give_openai_lines_on_standard_output(tmp_path: Path, model: Path) -> None:
    fleet = Fleet(tmp_path)
    backlog = tmp_path / "in.jsonl"
    request = {
        "custom_id": "one",
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": {"model": "x", "messages": [{"role": "user", "content": "yes"}], "max_tokens": 4},
    }
    backlog.write_text(json.dumps(request) + "\n")
    ended = fleet.run("run", "generate", backlog, "-m", model, "-o", "-").expect(0)
    (line,) = map(json.loads, ended.out.splitlines())
    assert line["custom_id"] == "one"
    assert line["response"]["body"]["choices"][0]["message"]["role"] == "assistant"
    assert line["response"]["body"]["usage"]["completion_tokens"] <= 4
    assert "-m wins" in ended.err


def test_a_second_fleet_on_the_same_folder_is_told_who_works_there(tmp_path: Path, model: Path) -> None:
    from coordinator.ledger.ledger import Ledger

    fleet = Fleet(tmp_path)
    backlog = write_prompts(tmp_path / "in.jsonl", ["yes"])
    fleet.state.make()
    with Ledger.open(fleet.state):
        ended = fleet.run("run", "generate", backlog, "-m", model, "-o", fleet.out).expect(1)
    assert "pid" in ended.err
    assert not fleet.out.exists()


def test_a_seed_draws_the_same_answers_again_also_when_all_is_computed_anew(tmp_path: Path, model: Path) -> None:
    fleet = Fleet(tmp_path)
    backlog = write_prompts(tmp_path / "in.jsonl", PROMPTS[:6])
    command = ["run", "generate", backlog, "-m", model, "-o", fleet.out, "--max-tokens", "8"]
    drawn = []
    for more in (["--seed", "7"], ["--seed", "7", "--fresh"], ["--seed", "8"]):
        fleet.run(*command, "--temperature", "0.9", *more).expect(0)
        drawn.append([line["text"] for line in read_lines(fleet.out)])
    assert drawn[0] == drawn[1] != drawn[2]
    assert len(fleet.computed()) == 18


def test_memory_that_holds_no_row_beside_the_model_is_one_error_with_figures(tmp_path: Path, model: Path) -> None:
    fleet = Fleet(tmp_path)
    backlog = write_prompts(tmp_path / "in.jsonl", PROMPTS[:6])
    ended = fleet.run("run", "generate", backlog, "-m", model, "-o", fleet.out, "--memory", "100K").expect(1)
    assert "give it more with --memory" in ended.err
    assert not fleet.out.exists()
