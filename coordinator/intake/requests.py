"""One decoded record to a request: an OpenAI batch line, or a flat `{prompt}`, `{text}` or `{messages}` object."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Any

from coordinator.intake import fields
from coordinator.intake.conversation import Message, read_messages
from coordinator.intake.fields import NOTHING_SET, Settings, found, wrong
from coordinator.intake.formats import Record
from coordinator.intake.ids import batch_id, flat_id, id_field_of, makes_id
from coordinator.intake.jsonl import dump
from coordinator.intake.options import IntakeOptions
from coordinator.intake.raw_prompts import read_prompts
from coordinator.records import Source
from fleet.errors import RequestError
from fleet.job import Task

CHAT_URL = "/v1/chat/completions"
COMPLETIONS_URL = "/v1/completions"
EMBEDDINGS_URL = "/v1/embeddings"
#: Where a flat object's content may stand, in order of preference.
_CONTENT_FIELDS = {
    Task.GENERATE: ("messages", "prompt", "text"),
    Task.SUMMARIZE: ("text", "prompt", "messages"),
    Task.CLASSIFY: ("text", "prompt", "messages"),
    Task.EMBED: ("text", "input", "prompt", "messages"),
}
_VERBS = {
    Task.GENERATE: "complete",
    Task.SUMMARIZE: "summarize",
    Task.CLASSIFY: "classify",
    Task.EMBED: "embed",
}

_KNOWN = fields.SAMPLING | fields.HARMLESS | fields.NEUTRAL.keys()
#: Fields of a body that are understood, by url.
_KNOWN_IN_BODY = {
    CHAT_URL: _KNOWN | {"messages"},
    COMPLETIONS_URL: _KNOWN | {"prompt"},
    EMBEDDINGS_URL: fields.HARMLESS | fields.NEUTRAL.keys() | {"input", "dimensions", fields.ENCODING_FORMAT},
}
_KNOWN_IN_LINE = frozenset({"custom_id", "method", "url", "body"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """What a request is about: exactly one of the three is there."""

    #: a conversation, for the chat template
    messages: tuple[Message, ...] = ()
    #: prompts for no template: text, or token ids
    prompts: tuple[str | tuple[int, ...], ...] = ()
    #: texts for the task's template
    texts: tuple[str, ...] = ()


NO_CONTENT = Content()


@dataclass(frozen=True, slots=True, kw_only=True)
class RawRequest:
    """A request before its prompts are made."""

    custom_id: str | None
    source: Source
    #: why it cannot be run; then there is no content
    error: str | None = None
    content: Content = NO_CONTENT
    settings: Settings = NOTHING_SET
    #: see `NewRequest.extra`
    extra: str = ""
    #: see `NewRequest.url`
    url: str = ""
    #: see `NewRequest.made_id`
    made_id: bool = False


def is_openai(value: object, text_field: str | None = None) -> bool | None:
    """Whether a JSON value is meant as an OpenAI batch line; None when it is no request at all."""
    if not isinstance(value, dict):
        return None
    if isinstance(value.get("body"), dict):
        return True
    if value.keys() & {"prompt", "text", "messages", text_field}:
        return False
    return True if value.keys() & {"method", "url", "body"} else None


def parse(record: Record, ordinal: int, options: IntakeOptions, notices: Counter[str]) -> RawRequest:
    """The request in `record`, the `ordinal`-th (from 1) of the backlog; what is wrong with it is its `error`."""
    custom_id, url, error = record.name or None, "", record.error
    try:
        if error is not None and record.value is not None:
            custom_id = flat_id(record, ordinal, options)
        elif error is None and not isinstance(record.value, dict):
            error = f"found {found(record.value)}, expected a JSON object"
        elif error is None and record.text_field is None and is_openai(record.value, options.text_field):
            custom_id = batch_id(record.value)
            url = record.value["url"] if isinstance(record.value.get("url"), str) else ""
            return _parse_openai(record, custom_id, options, notices)
        elif error is None:
            custom_id = flat_id(record, ordinal, options)
            return _parse_flat(record, custom_id, options, notices)
    except RequestError as problem:
        error = error or str(problem)
    except RecursionError:
        error = "JSON nested too deeply"
    extra = "" if url else _rest(record, custom_id, options)
    made_id = custom_id is not None and not url and makes_id(record, options)
    return RawRequest(custom_id=custom_id, source=record.source, url=url, error=error, extra=extra, made_id=made_id)


# -- OpenAI batch lines ------------------------------------------------------------------------------


def _parse_openai(record: Record, custom_id: str, options: IntakeOptions, notices: Counter[str]) -> RawRequest:
    line: Mapping[str, Any] = record.value
    body = _body(line, options)
    url = line["url"]
    _notice_unknown(line, _KNOWN_IN_LINE, notices)
    _notice_unknown(body, _KNOWN_IN_BODY[url], notices)
    _notice_model(body, options, notices)
    fields.check_neutral(body)
    if url == EMBEDDINGS_URL:
        return _embedding(record, custom_id, body)
    return RawRequest(
        custom_id=custom_id,
        source=record.source,
        content=_chat(body, options) if url == CHAT_URL else _completion(body, options),
        settings=fields.settings(body),
        url=url,
    )


def _body(line: Mapping[str, Any], options: IntakeOptions) -> Mapping[str, Any]:
    missing = [name for name in ("method", "url", "body") if line.get(name) is None]
    if missing:
        raise RequestError(f"{' and '.join(missing)} missing")
    if line["method"] != "POST":
        raise wrong("method", line["method"], '"POST"')
    urls = (EMBEDDINGS_URL,) if options.task is Task.EMBED else (CHAT_URL, COMPLETIONS_URL)
    if line["url"] not in urls:
        raise wrong("url", line["url"], f"{' or '.join(urls)} for {options.task}")
    if not isinstance(line["body"], dict):
        raise wrong("body", line["body"], "an object")
    return line["body"]


def _chat(body: Mapping[str, Any], options: IntakeOptions) -> Content:
    if "messages" not in body:
        raise RequestError("body.messages is missing")
    return _of_messages(body["messages"], options)


def _completion(body: Mapping[str, Any], options: IntakeOptions) -> Content:
    if "prompt" not in body:
        raise RequestError("body.prompt is missing")
    prompts = read_prompts(body["prompt"], "prompt", _VERBS[Task.GENERATE])
    if options.task is Task.GENERATE:
        return Content(prompts=prompts)
    texts = tuple(_text(prompt, "prompt", options) for prompt in prompts)
    return Content(texts=texts)


def _embedding(record: Record, custom_id: str, body: Mapping[str, Any]) -> RawRequest:
    if "input" not in body:
        raise RequestError("body.input is missing")
    written = fields.encoding_format(body)
    return RawRequest(
        custom_id=custom_id,
        source=record.source,
        content=Content(prompts=read_prompts(body["input"], "input", _VERBS[Task.EMBED])),
        settings=fields.embedding_settings(body),
        extra="" if written == fields.ENCODING_FORMATS[0] else dump({fields.ENCODING_FORMAT: written}),
        url=EMBEDDINGS_URL,
    )


def _notice_unknown(body: Mapping[str, Any], known: frozenset[str], notices: Counter[str]) -> None:
    for name in body.keys() - known:
        notices[f"unknown field {found(name)} ignored"] += 1


def _notice_model(body: Mapping[str, Any], options: IntakeOptions, notices: Counter[str]) -> None:
    model = body.get("model")
    if isinstance(model, str) and model != options.model:
        notices[f"-m wins over body.model {found(model)}"] += 1


# -- flat objects ------------------------------------------------------------------------------------


def _content_field(record: Record, options: IntakeOptions) -> str:
    if record.text_field is not None:
        return record.text_field
    wanted = (options.text_field,) if options.text_field is not None else _CONTENT_FIELDS[options.task]
    name = next((name for name in wanted if name in record.value), None)
    if name is None:
        there = f"found the fields {fields.names(record.value)}"
        if options.text_field is not None:
            raise RequestError(f"{there}, expected {found(options.text_field)}, which --text-field names")
        raise RequestError(f"{there}, expected {' or '.join(wanted)}, or an OpenAI batch line")
    return name


def _is_body(record: Record, field: str, options: IntakeOptions) -> bool:
    """Whether a flat object's other fields can be sampling settings, as in an OpenAI body."""
    if options.task is Task.EMBED:
        return False
    return field in ("messages", "prompt") and record.text_field is None and options.text_field is None


def _parse_flat(record: Record, custom_id: str, options: IntakeOptions, notices: Counter[str]) -> RawRequest:
    value: Mapping[str, Any] = record.value
    field = _content_field(record, options)
    is_body = _is_body(record, field, options)
    if is_body:
        _notice_model(value, options, notices)
        fields.check_neutral(value)
    if field == "messages" and record.text_field is None and options.text_field is None:
        content = _of_messages(value[field], options)
    else:
        content = Content(texts=(_text(value[field], field, options),))
    return RawRequest(
        custom_id=custom_id,
        source=record.source,
        made_id=makes_id(record, options),
        content=content,
        settings=fields.settings(value) if is_body else NOTHING_SET,
        extra=_extra(record, {field, id_field_of(record, options)} | (_KNOWN if is_body else set())),
    )


def _rest(record: Record, custom_id: str | None, options: IntakeOptions) -> str:
    """What a flat record that failed carries through all the same: the fields that are neither its id nor its content.

    Nothing where it was too broken, or an OpenAI batch line.
    """
    if not isinstance(record.value, dict) or (
        record.text_field is None and is_openai(record.value, options.text_field)
    ):
        return ""
    used: set[str | None] = set()
    try:
        if custom_id is not None:
            used.add(id_field_of(record, options))
        field = _content_field(record, options)
        used |= {field} | (_KNOWN if _is_body(record, field, options) else set())
    except RequestError:
        pass  # no such field: the others are carried
    try:
        return _extra(record, used)
    except (RequestError, RecursionError):
        return ""


def _extra(record: Record, used: Set[str | None]) -> str:
    """The fields that are not `used`, as JSON; RequestError where JSON cannot say them."""
    carried = {name: item for name, item in record.value.items() if name not in used}
    try:
        return dump(carried) if carried else ""
    except ValueError as error:
        raise RequestError("found a number beyond what JSON can say, expected a finite one") from error


def _text(value: object, name: str, options: IntakeOptions) -> str:
    if not isinstance(value, str):
        raise wrong(name, value, "a text")
    if not value or value.isspace():
        raise RequestError(f"{name} is empty: nothing to {_VERBS[options.task]}")
    return value


# -- messages ----------------------------------------------------------------------------------------


def _of_messages(value: object, options: IntakeOptions) -> Content:
    messages = read_messages(value)
    if options.task is Task.GENERATE:
        return Content(messages=messages)
    last = next((message["content"] for message in reversed(messages) if message["role"] == "user"), None)
    if last is None:
        raise RequestError(f"messages: found no user message, expected one with the text to {_VERBS[options.task]}")
    return Content(texts=(_text(last, "the last user message", options),))
