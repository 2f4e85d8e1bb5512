"""Templates around texts, and system prompts."""

from datetime import date
from pathlib import Path

import pytest

from coordinator.intake.chat import ChatTemplate
from coordinator.intake.options import IntakeOptions
from coordinator.intake.prompts import Prompts, TextTemplate, read_template
from coordinator.intake.requests import Content, RawRequest
from coordinator.records import Source
from fleet.errors import RequestError, UsageError
from fleet.job import Task

CHAT = ChatTemplate(
    "{% for m in messages %}[{{ m.role }}:{{ m.content }}]{% endfor %}", special_tokens={}, today=date.min, where=""
)


def prompts(task: Task = Task.GENERATE, template: str | None = None, system: str | None = None) -> Prompts:
    options = IntakeOptions(task=task, model="m", prompt_template=template, system=system, labels=("a", "{text}"))
    return Prompts(options, CHAT, 100)


def request(**content: object) -> RawRequest:
    return RawRequest(custom_id="a", source=Source(file="f", line=1), content=Content(**content))  # type: ignore[arg-type]


def test_a_text_is_put_in_once_and_never_looked_into() -> None:
    assert TextTemplate.parse("{a} {text} {text} %s").fill("{text}%") == "{a} {text}% {text} %s"


def test_a_template_is_a_text_or_a_file(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_bytes(b"\xef\xbb\xbfIn a file: {text}")
    assert read_template("Here: {text}") == "Here: {text}"
    assert read_template(str(tmp_path / "t.txt")) == "In a file: {text}"
    with pytest.raises(UsageError, match="no readable text file"):
        read_template(str(tmp_path / "nowhere"))


def test_a_label_that_looks_like_a_place_is_only_a_label() -> None:
    assert "a, {text}?\n\nText: the text\n" in prompts(Task.CLASSIFY).document("the text")


def test_the_jobs_template_goes_around_the_last_user_message() -> None:
    talk = ({"role": "user", "content": "A"}, {"role": "assistant", "content": "B"}, {"role": "user", "content": "C"})
    (prompt,) = prompts(template="<{text}>", system="S").of(request(messages=talk))
    assert prompt.text == "[system:S][user:A][assistant:B][user:<C>]"


def test_the_jobs_template_goes_around_a_raw_prompt_and_not_around_token_ids() -> None:
    raw, ids = request(prompts=("once",)), request(prompts=((1, 2),))
    assert prompts(template="<{text}>").of(raw)[0].text == "<once>"
    with pytest.raises(RequestError, match="token ids"):
        prompts(template="<{text}>").of(ids)


def test_summaries_are_put_together_under_the_template_of_the_parts() -> None:
    assert prompts(Task.SUMMARIZE, "<{text}>").reduction(["A", "B"]) == "[user:<A\n\nB>]"
    assert "parts of one text" in prompts(Task.SUMMARIZE).reduction(["A", "B"])
