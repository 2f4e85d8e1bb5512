"""Prefixes shared in `fleet run`: the answers of the plain path, and fewer prompt tokens computed."""

import json
from pathlib import Path

import pytest

from tests.models import tiny_llama
from tests.reference import Reference
from tests.runner import Fleet, read_lines

pytestmark = pytest.mark.mlx

SYSTEMS = (
    "You are a clerk of the senate. Tell what the people of the states were told, in one sentence, "
    "and no more than that; if nobody was told, say so.",
    "You are a reader of reviews. Say whether the review is a positive, a negative or a neutral one, "
    "and name the word that says it best.",
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("model") / "tiny")


def messages(n: int) -> list[dict[str, str]]:
    return [
        {"role": "system", "content": SYSTEMS[n % 2]},
        {"role": "user", "content": f"Number {n}: the house met{' and the senate met' * (n % 5)}."},
    ]


def test_two_system_prompts_in_one_backlog_are_computed_once_each(tmp_path: Path, model: Path) -> None:
    fleet = Fleet(tmp_path)
    backlog = tmp_path / "in.jsonl"
    backlog.write_text("".join(json.dumps({"id": f"r{n}", "messages": messages(n)}) + "\n" for n in range(60)))
    command = ["run", "generate", backlog, "-m", model, "-o", fleet.out, "--max-tokens", "12", "--batch", "8", "--json"]
    report = json.loads(fleet.run(*command).expect(0).out)
    reference = Reference(model)
    prompts = [reference.prompt(messages(n)) for n in range(60)]
    assert [line["text"] for line in read_lines(fleet.out)] == [reference.answer(prompt, 12) for prompt in prompts]
    assert [line["input_tokens"] for line in read_lines(fleet.out)] == [len(prompt) for prompt in prompts]
    computed = report["input_tokens"] - report["shared_tokens"]
    assert report["shared_tokens"] > 58 * 64
    assert computed == pytest.approx(report["prompt_tps"] * report["seconds"])
    fleet.validate()
