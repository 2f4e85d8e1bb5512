"""Thinking, end tokens and unlike sampling in `fleet run`, with models that say what they are made to say."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.models import TEMPLATE, chained, tiny_llama
from tests.reference import Reference
from tests.runner import Fleet, read_lines, write_prompts

pytestmark = pytest.mark.mlx

THINKS = TEMPLATE + "{{ '<think>' if enable_thinking else '<think></think>' }}"


def lines_of(path: Path, *bodies: Mapping[str, Any], url: str = "/v1/completions") -> Path:
    """An OpenAI batch of these bodies, ids r0, r1, ..."""
    with path.open("w") as file:
        for number, body in enumerate(bodies):
            file.write(json.dumps({"custom_id": f"r{number}", "method": "POST", "url": url, "body": body}) + "\n")
    return path


@pytest.fixture(scope="module")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    chain = ("<think>", "s", "o", "</think>", "y", "n", "<|im_end|>")
    return chained(tmp_path_factory.mktemp("model") / "thinker", chain, added=("<think>", "</think>"), template=THINKS)


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ((), {"text": "yn", "finish_reason": "stop", "output_tokens": 2}),
        (("--no-think",), {"text": "yn", "finish_reason": "stop", "output_tokens": 2}),
        (("--think",), {"text": "yn", "reasoning": "so", "finish_reason": "stop", "output_tokens": 5}),
        (
            ("--think", "--max-tokens", "2"),
            {"text": "", "reasoning": "so", "finish_reason": "length_in_thinking", "output_tokens": 2},
        ),
        (("--think", "--stop", "o", "--stop", "n"), {"text": "y", "reasoning": "so", "finish_reason": "stop"}),
    ],
    ids=" ".join,
)
def test_a_thinking_model_thinks_when_it_is_told_to_and_its_thinking_stands_apart(
    tmp_path: Path, thinker: Path, flags: tuple[str, ...], expected: dict[str, Any]
) -> None:
    fleet = Fleet(tmp_path)
    backlog = write_prompts(tmp_path / "in.jsonl", ["who?", "where?"])
    fleet.run("run", "generate", backlog, "-m", thinker, "-o", fleet.out, "--batch", "2", *flags).expect(0)
    for line in read_lines(fleet.out):
        assert line.get("reasoning") == expected.get("reasoning")
        assert {name: line[name] for name in expected} == expected
    fleet.validate()


def test_each_of_several_end_tokens_ends_a_row(tmp_path: Path) -> None:
    chains = (("a", "b", "<|im_end|>"), ("c", "d", "<|endoftext|>"), ("e", "f", "q"), ("g", "h", "<|im_start|>", "z"))
    model = chained(tmp_path / "model", *chains)
    reference = Reference(model)
    (q,) = reference.encode("q")
    (model / "generation_config.json").write_text(json.dumps({"eos_token_id": [0, q]}))
    fleet = Fleet(tmp_path)
    prompts = [{"prompt": prompt, "max_tokens": 3} for prompt in "aceg"]
    backlog = lines_of(tmp_path / "in.jsonl", *prompts)
    fleet.run("run", "generate", backlog, "-m", model, "-o", fleet.out, "--batch", "4").expect(0)
    choices = [line["response"]["body"]["choices"][0] for line in read_lines(fleet.out)]
    assert [choice["text"] for choice in choices] == ["b", "d", "f", "hz"]
    assert [choice["finish_reason"] for choice in choices] == ["stop", "stop", "stop", "length"]


def test_lines_of_unlike_sampling_answer_in_one_run_as_they_do_alone(tmp_path: Path) -> None:
    model = tiny_llama(tmp_path / "model")
    kinds: list[dict[str, Any]] = [
        {},
        {"temperature": 0.9, "seed": 1},
        {"temperature": 0.9, "seed": 2, "top_p": 0.5},
        {"presence_penalty": 1.5},
        {"frequency_penalty": 2, "max_tokens": 30},
        {"repetition_penalty": 1.8, "max_tokens": 5},
        {"stop": ["e", "s"]},
    ]
    bodies = [{"prompt": f"the senate met {n % 3}", "max_tokens": 12, **kinds[n % len(kinds)]} for n in range(21)]
    answers = []
    for batch in (1, 8):
        fleet = Fleet(tmp_path / str(batch))
        fleet.out.parent.mkdir()
        backlog = lines_of(tmp_path / f"{batch}.jsonl", *bodies)
        fleet.run("run", "generate", backlog, "-m", model, "-o", fleet.out, "--batch", str(batch)).expect(0)
        answers.append([line["response"]["body"]["choices"] for line in read_lines(fleet.out)])
    assert answers[0] == answers[1]
    assert len({json.dumps(choices) for choices in answers[0]}) > 15
    reference = Reference(model)
    assert answers[0][0][0]["text"] == reference.answer(reference.encode(bodies[0]["prompt"]), 12)
