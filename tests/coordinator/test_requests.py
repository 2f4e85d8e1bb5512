"""One decoded object to a request, or to a sentence about what is wrong with it."""

from collections import Counter
from typing import Any

import pytest

from coordinator.intake.formats import Record
from coordinator.intake.options import IntakeOptions
from coordinator.intake.requests import RawRequest, is_openai, parse
from coordinator.records import Source
from fleet.job import Task

SOURCE = Source(file="in.jsonl", line=1)
HELLO = [{"role": "user", "content": "Hello"}]


def read(value: object, task: Task = Task.GENERATE, **options: Any) -> RawRequest:
    record = Record(source=SOURCE, value=value, text_field=options.pop("column", None))
    return parse(record, 1, IntakeOptions(task=task, model="m", **options), Counter())


def batch(url: str = "/v1/chat/completions", **body: object) -> dict[str, object]:
    return {"custom_id": "a", "method": "POST", "url": url, "body": body}


def chat_error(**body: object) -> str:
    request = read(batch(messages=HELLO, **body))
    assert request.custom_id == "a", "an error keeps the id it belongs to"
    return request.error or ""


@pytest.mark.parametrize(
    "body",
    [
        {"n": 2},
        {"best_of": 2},
        {"tools": [{"type": "function"}]},
        {"functions": [{}]},
        {"response_format": {"type": "json_object"}},
        {"logit_bias": {"5": 1}},
        {"stream": True},
        {"logprobs": True},
        {"top_logprobs": 2},
        {"suffix": "x"},
        {"echo": True},
        {"audio": {"voice": "x"}},
        {"modalities": ["text", "audio"]},
        {"tool_choice": "required"},
        {"top_k": 5},
        {"n": True},
    ],
    ids=lambda body: next(iter(body)),
)
def test_a_field_that_would_change_the_answer_is_an_error_that_names_it(body: dict[str, object]) -> None:
    assert chat_error(**body).partition(" is not done here: leave it out")[0].startswith(f"{next(iter(body))}: ")


def test_what_to_set_such_a_field_to_is_said_word_for_word() -> None:
    # It was "set it to an object".
    told = chat_error(response_format={"type": "json_object"})
    assert told == 'response_format: an object is not done here: leave it out or set it to {"type": "text"}'


@pytest.mark.parametrize("task", list(Task))
def test_a_text_file_keeps_its_name_whatever_field_holds_an_id_elsewhere(task: Task) -> None:
    record = Record(source=SOURCE, value={"text": "A"}, text_field="text", name="a.txt")
    options = IntakeOptions(task=task, model="m", id_field="nr", text_field="body")
    request = parse(record, 1, options, Counter())
    assert (request.custom_id, request.error, request.extra, request.made_id) == ("a.txt", None, "", False)


def test_the_same_fields_asking_for_nothing_are_fine() -> None:
    neutral = {"n": 1, "stream": False, "tools": [], "response_format": {"type": "text"}, "logit_bias": None}
    more = {"presence_penalty": 0.0, "user": "u", "metadata": {"a": 1}, "store": True, "logprobs": False}
    assert chat_error(**neutral, **more) == ""


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ({"max_tokens": "8"}, 'max_tokens: found "8", expected a positive integer'),
        ({"max_tokens": 0}, "max_tokens: found 0, expected a positive integer"),
        ({"max_tokens": True}, "max_tokens: found true, expected a positive integer"),
        ({"max_completion_tokens": 1.5}, "max_completion_tokens: found 1.5, expected a positive integer"),
        ({"temperature": "hot"}, 'temperature: found "hot", expected a number from 0 to 2'),
        ({"temperature": 2.5}, "temperature: found 2.5, expected a number from 0 to 2"),
        ({"presence_penalty": -2.5}, "presence_penalty: found -2.5, expected a number from -2 to 2"),
        ({"frequency_penalty": True}, "frequency_penalty: found true, expected a number from -2 to 2"),
        ({"repetition_penalty": 0}, "repetition_penalty: found 0, expected a number over 0, at most 2"),
        ({"top_p": 0}, "top_p: found 0, expected a number over 0, at most 1"),
        ({"seed": 1 << 70}, f"seed: found {1 << 70}, expected an integer of 64 bits"),
        ({"stop": ["a", ""]}, 'stop: found "", expected a text that is not empty, or a list of such'),
        ({"stop": ["a"] * 17}, "stop: found 17 texts, expected at most 16"),
        ({"stop": "x" * 100}, ""),
    ],
)
def test_sampling_fields_are_checked_with_a_sentence(body: dict[str, object], sentence: str) -> None:
    assert chat_error(**body) == sentence


def test_sampling_fields_are_read_and_null_is_the_same_as_absent() -> None:
    found = read(batch(messages=HELLO, max_completion_tokens=9, temperature=1, stop="END", seed=None)).settings
    assert (found.max_tokens, found.temperature, found.stop, found.seed) == (9, 1.0, ("END",), None)
    more = read(batch(messages=HELLO, presence_penalty=1, frequency_penalty=None, repetition_penalty=1.3)).settings
    assert (more.presence_penalty, more.frequency_penalty, more.repetition_penalty) == (1.0, None, 1.3)


@pytest.mark.parametrize(
    ("messages", "sentence"),
    [
        ("hello", 'messages: found "hello", expected a list'),
        ([], "messages is empty: nothing to complete"),
        (["hello"], 'messages[0]: found "hello", expected an object with role and content'),
        ([{"content": "x"}], "messages[0].role: found null, expected system or developer or user or assistant"),
        ([{"role": "user"}], "messages[0].content: found null, expected a text or a list of text parts"),
        ([{"role": "user", "content": "  "}], "messages have no text: nothing to complete"),
        (
            [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
            'messages[0].content[0]: found a part of type "image_url", expected a text part',
        ),
        (
            [{"role": "user", "content": [{"type": "input_audio"}]}],
            'messages[0].content[0]: found a part of type "input_audio", expected a text part',
        ),
        (
            [{"role": "assistant", "content": None, "tool_calls": [{}]}],
            "messages[0].tool_calls: found a list, which is not done here",
        ),
    ],
)
def test_messages_that_no_template_could_show_are_errors(messages: object, sentence: str) -> None:
    assert read(batch(messages=messages)).error == sentence


def test_text_parts_are_joined() -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    assert read(batch(messages=[{"role": "user", "content": parts}])).content.messages[0]["content"] == "one\ntwo"


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ({"method": "POST", "url": "/v1/completions", "body": {}}, "custom_id is missing"),
        ({**batch(), "custom_id": 5}, "custom_id: found 5, expected a string that is not empty"),
        ({**batch(), "method": "GET"}, 'method: found "GET", expected "POST"'),
        ({**batch(), "url": "/v2"}, 'url: found "/v2", expected /v1/chat/completions or /v1/completions for generate'),
        ({**batch(), "body": [1]}, "body: found a list, expected an object"),
        (batch(), "body.messages is missing"),
        (batch("/v1/completions"), "body.prompt is missing"),
        (
            batch("/v1/embeddings", input="x"),
            'url: found "/v1/embeddings", expected /v1/chat/completions or /v1/completions for generate',
        ),
        ({"name": "x"}, 'found the fields "name", expected messages or prompt or text, or an OpenAI batch line'),
        ({}, "found the fields none, expected messages or prompt or text, or an OpenAI batch line"),
        ({"prompt": ["a"]}, "prompt: found a list, expected a text"),
        ({"prompt": " \n"}, "prompt is empty: nothing to complete"),
        ({"id": [], "prompt": "a"}, "id: found [], expected an id: a text that is not empty, or an integer"),
        ({"prompt": "a", "score": float("inf")}, "found a number beyond what JSON can say, expected a finite one"),
    ],
)
def test_a_line_of_the_wrong_form_says_what_was_expected(line: object, sentence: str) -> None:
    assert read(line).error == sentence


@pytest.mark.parametrize("prompt", [[], [""], "", ["a", 5], [[]], [1, "a"], [[1], "a"], [True], 5, None, {"a": 1}])
def test_completions_prompts_of_the_wrong_form_are_errors(prompt: object) -> None:
    assert (read(batch("/v1/completions", prompt=prompt)).error or "").startswith("prompt")


def test_token_ids_are_no_text_to_summarize() -> None:
    found = read(batch("/v1/completions", prompt=[1, 2]), Task.SUMMARIZE)
    assert found.error == "prompt: found a list, expected a text"


def test_a_flat_body_is_held_to_the_same_rules_as_a_batch_line() -> None:
    assert (read({"prompt": "a", "n": 2}).error or "").startswith("n: 2 is not done here")
    assert (read({"messages": HELLO, "max_tokens": "8"}).error or "").startswith("max_tokens")


def test_next_to_a_text_any_field_is_only_data() -> None:
    request = read({"text": "a", "n": 2, "stream": True, "temperature": "warm"}, Task.SUMMARIZE)
    assert request.error is None
    assert request.extra == '{"n":2,"stream":true,"temperature":"warm"}'


def test_the_text_and_the_id_come_from_the_fields_asked_for() -> None:
    mail = {"id": 1, "key": "k1", "subject": "s", "body": "Dear all"}
    request = read(mail, Task.CLASSIFY, text_field="body", id_field="key", labels=("a",))
    assert (request.custom_id, request.content.texts, request.extra) == ("k1", ("Dear all",), '{"id":1,"subject":"s"}')
    assert (read({"text": "a"}, id_field="key").error or "").startswith('no field "key" for the id')
    named = read({"text": "a", "n": 1}, text_field="mail").error
    assert named == 'found the fields "text", "n", expected "mail", which --text-field names'


@pytest.mark.parametrize(
    ("line", "options", "extra"),
    [
        ({"id": "a", "subject": "s", "text": ""}, {}, '{"subject":"s"}'),
        ({"id": "a", "subject": "s"}, {"text_field": "body"}, '{"subject":"s"}'),
        ({"id": "a", "prompt": "x", "subject": "s", "n": 2}, {}, '{"subject":"s"}'),
        ({"id": 1.5, "prompt": "x", "subject": "s"}, {}, '{"id":1.5,"subject":"s"}'),
        ({"subject": "s", "prompt": "x"}, {"id_field": "key"}, '{"subject":"s"}'),
        ({"id": "a", "prompt": "x", "score": float("inf")}, {}, ""),
        ([1], {}, ""),
        (batch(n=2), {}, ""),
    ],
)
def test_a_line_that_fails_carries_its_other_fields_too(line: object, options: dict[str, str], extra: str) -> None:
    found = read(line, **options)
    assert found.error
    assert found.extra == extra


def test_a_row_that_cannot_be_read_keeps_what_can_be_told() -> None:
    row = {"id": "7", "subject": "s", "text": "caf\ufffd"}
    record = Record(source=SOURCE, value=row, text_field="text", error="not UTF-8")
    found = parse(record, 1, IntakeOptions(task=Task.SUMMARIZE, model="m"), Counter())
    assert (found.custom_id, found.error, found.extra) == ("7", "not UTF-8", '{"subject":"s"}')
    named = parse(record, 1, IntakeOptions(task=Task.SUMMARIZE, model="m", id_field="key"), Counter())
    assert (named.custom_id, named.error) == (None, "not UTF-8")


def test_an_openai_line_is_told_from_a_flat_one_by_its_body() -> None:
    assert is_openai(batch()) is True
    assert is_openai({"custom_id": "a", "body": {}}) is True
    assert is_openai({"prompt": "a", "url": "https://x", "method": "GET"}) is False
    assert is_openai({"subject": "s", "body": "Dear all"}, "body") is False
    assert is_openai([1]) is None


def test_a_long_value_is_described_and_not_quoted() -> None:
    assert chat_error(max_tokens="secret " * 50) == (
        "max_tokens: found a string of 350 characters, expected a positive integer"
    )


def test_deep_nesting_is_an_error_and_no_crash() -> None:
    deep: list[object] = []
    for _ in range(5000):
        deep = [deep]
    assert read({"prompt": "a", "deep": deep}).error == "JSON nested too deeply"
