"""One decoded record to a request: an OpenAI batch line, or a flat `{prompt}`, `{text}` or `{messages}` object."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from coordinator import fields
from coordinator.fields import NOTHING_SET, Settings, found, wrong
from coordinator.formats import Record
from coordinator.jsonl import dump
from coordinator.options import IntakeOptions
from coordinator.records import Source
from fleet.errors import RequestError
from fleet.job import Task

CHAT_URL = "/v1/chat/completions"
COMPLETIONS_URL = "/v1/completions"
EMBEDDINGS_URL = "/v1/embeddings"
ROLES = ("system", "developer", "user", "assistant")
#: Where a flat object's content may stand, in order of preference.
_CONTENT_FIELDS = {
    Task.GENERATE: ("messages", "prompt", "text"),
    Task.SUMMARIZE: ("text", "prompt", "messages"),
    Task.CLASSIFY: ("text", "prompt", "messages"),
}
_VERBS = {Task.GENERATE: "complete", Task.SUMMARIZE: "summarize", Task.CLASSIFY: "classify"}

#: A message as chat templates read it: role and content.
Message = dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class RawRequest:
    """A request before its prompts are made; without an `error` exactly one of the three contents is there."""

    custom_id: str | None
    source: Source
    error: str | None = None
    #: a conversation, for the chat template
    messages: tuple[Message, ...] = ()
    #: prompts for no template: text, or token ids
    prompts: tuple[str | tuple[int, ...], ...] = ()
    #: texts for the task's template
    texts: tuple[str, ...] = ()
    settings: Settings = NOTHING_SET
    #: see `NewRequest.extra`
    extra: str = ""
    #: see `NewRequest.url`
    url: str = ""


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
    draft = RawRequest(custom_id=record.name or None, source=record.source, error=record.error)
    if record.error is not None:
        return draft
    try:
        if not isinstance(record.value, dict):
            raise RequestError(f"found {found(record.value)}, expected a JSON object")
        if record.text_field is None and is_openai(record.value, options.text_field):
            return _parse_openai(record.value, draft, options, notices)
        draft = replace(draft, custom_id=_flat_id(record, ordinal, options))
        return _parse_flat(record, draft, options, notices)
    except _BodyError as error:
        return replace(draft, custom_id=error.custom_id, url=error.url, error=str(error))
    except RequestError as error:
        return replace(draft, error=str(error))
    except RecursionError:
        return replace(draft, error="JSON nested too deeply")


class _BodyError(RequestError):
    """Raised when a line whose id is known is wrong elsewhere."""

    def __init__(self, text: str, custom_id: str, url: str) -> None:
        super().__init__(text)
        self.custom_id = custom_id
        self.url = url


# -- OpenAI batch lines ------------------------------------------------------------------------------


def _parse_openai(
    line: Mapping[str, Any], draft: RawRequest, options: IntakeOptions, notices: Counter[str]
) -> RawRequest:
    custom_id = line.get("custom_id")
    if custom_id is None:
        raise RequestError("custom_id is missing")
    if not isinstance(custom_id, str) or not custom_id:
        raise wrong("custom_id", custom_id, "a string that is not empty")
    url = line.get("url")
    try:
        body = _body(line)
        _notice_unknown(line, frozenset({"custom_id", "method", "url", "body"}), notices)
        return _read_body(body, replace(draft, custom_id=custom_id, url=line["url"]), options, notices)
    except RequestError as error:
        raise _BodyError(str(error), custom_id, url if isinstance(url, str) else "") from error


def _body(line: Mapping[str, Any]) -> Mapping[str, Any]:
    missing = [name for name in ("method", "url", "body") if line.get(name) is None]
    if missing:
        raise RequestError(f"{' and '.join(missing)} missing")
    if line["method"] != "POST":
        raise wrong("method", line["method"], '"POST"')
    if line["url"] == EMBEDDINGS_URL:
        raise RequestError("embeddings are not yet done here")
    if line["url"] not in (CHAT_URL, COMPLETIONS_URL):
        raise wrong("url", line["url"], f"{CHAT_URL} or {COMPLETIONS_URL}")
    if not isinstance(line["body"], dict):
        raise wrong("body", line["body"], "an object")
    return line["body"]


def _read_body(body: Mapping[str, Any], draft: RawRequest, options: IntakeOptions, notices: Counter[str]) -> RawRequest:
    content = "messages" if draft.url == CHAT_URL else "prompt"
    if content not in body:
        raise RequestError(f"body.{content} is missing")
    known = fields.SAMPLING | fields.HARMLESS | fields.NEUTRAL.keys() | {content}
    _notice_unknown(body, known, notices)
    _notice_model(body, options, notices)
    fields.check_neutral(body)
    draft = replace(draft, settings=fields.settings(body))
    if content == "messages":
        return _with_messages(body["messages"], draft, options)
    prompts = read_prompts(body["prompt"])
    if options.task is Task.GENERATE:
        return replace(draft, prompts=prompts)
    texts = tuple(prompt for prompt in prompts if isinstance(prompt, str))
    if len(texts) < len(prompts):
        raise RequestError(f"prompt: found token ids, expected text to {_VERBS[options.task]}")
    return replace(draft, texts=texts)


def read_prompts(value: object) -> tuple[str | tuple[int, ...], ...]:
    """The prompts of a completions body: a text, texts, token ids, or lists of token ids."""
    items: list[Any] = value if isinstance(value, list) else [value]
    if _are_ids(value):
        return (tuple(items),)
    if not items or not (all(isinstance(item, str) for item in items) or all(map(_are_ids, items))):
        raise wrong("prompt", value, "a text, a list of texts, a list of token ids, or a list of such lists")
    if any(isinstance(item, str) and not item for item in items):
        raise RequestError("prompt is empty: nothing to complete")
    return tuple(item if isinstance(item, str) else tuple(item) for item in items)


def _are_ids(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(type(item) is int for item in value)


def _notice_unknown(body: Mapping[str, Any], known: frozenset[str], notices: Counter[str]) -> None:
    for name in body.keys() - known:
        notices[f"unknown field {found(name)} ignored"] += 1


def _notice_model(body: Mapping[str, Any], options: IntakeOptions, notices: Counter[str]) -> None:
    model = body.get("model")
    if isinstance(model, str) and model != options.model:
        notices[f"-m wins over body.model {found(model)}"] += 1


# -- flat objects ------------------------------------------------------------------------------------


def _flat_id(record: Record, ordinal: int, options: IntakeOptions) -> str:
    name = _id_field(record.value, options)
    value = record.value.get(name) if name else None
    if value is None and options.id_field is None:
        return record.name or f"row-{ordinal}"
    if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
        raise wrong(str(name), value, "an id: a text that is not empty, or an integer")
    return str(value)


def _id_field(value: Mapping[str, Any], options: IntakeOptions) -> str | None:
    if options.id_field is not None:
        if options.id_field not in value:
            raise RequestError(f"no field {found(options.id_field)} for the id: found {fields.names(value)}")
        return options.id_field
    return next((name for name in ("custom_id", "id") if value.get(name) is not None), None)


def _content_field(record: Record, options: IntakeOptions) -> str:
    if record.text_field is not None:
        return record.text_field
    wanted = (options.text_field,) if options.text_field is not None else _CONTENT_FIELDS[options.task]
    name = next((name for name in wanted if name in record.value), None)
    if name is None:
        expected = " or ".join(wanted) + ("" if options.text_field else ", or an OpenAI batch line")
        raise RequestError(f"found the fields {fields.names(record.value)}, expected {expected}")
    return name


def _parse_flat(record: Record, draft: RawRequest, options: IntakeOptions, notices: Counter[str]) -> RawRequest:
    value: Mapping[str, Any] = record.value
    content = _content_field(record, options)
    used = {content, _id_field(value, options)}
    is_body = content in ("messages", "prompt") and record.text_field is None and options.text_field is None
    if is_body:
        used |= fields.SAMPLING | fields.HARMLESS | fields.NEUTRAL.keys()
        _notice_model(value, options, notices)
        fields.check_neutral(value)
        draft = replace(draft, settings=fields.settings(value))
    carried = {name: item for name, item in value.items() if name not in used}
    if carried:
        try:
            draft = replace(draft, extra=dump(carried))
        except ValueError as error:
            raise RequestError("found a number beyond what JSON can say, expected a finite one") from error
    if content == "messages" and is_body:
        return _with_messages(value["messages"], draft, options)
    return replace(draft, texts=(_text(value[content], content, options),))


def _text(value: object, name: str, options: IntakeOptions) -> str:
    if not isinstance(value, str):
        raise wrong(name, value, "a text")
    if not value or value.isspace():
        raise RequestError(f"{name} is empty: nothing to {_VERBS[options.task]}")
    return value


# -- messages ----------------------------------------------------------------------------------------


def _with_messages(value: object, draft: RawRequest, options: IntakeOptions) -> RawRequest:
    messages = read_messages(value)
    if options.task is Task.GENERATE:
        return replace(draft, messages=messages)
    last = next((message["content"] for message in reversed(messages) if message["role"] == "user"), None)
    if last is None:
        raise RequestError(f"messages: found no user message, expected one with the text to {_VERBS[options.task]}")
    return replace(draft, texts=(_text(last, "the last user message", options),))


def read_messages(value: object) -> tuple[Message, ...]:
    """The messages, each with a role and one text; RequestError for anything a template could not show."""
    if not isinstance(value, list):
        raise wrong("messages", value, "a list")
    if not value:
        raise RequestError("messages is empty: nothing to complete")
    messages = tuple(_message(item, f"messages[{index}]") for index, item in enumerate(value))
    if not any(message["content"].strip() for message in messages):
        raise RequestError("messages have no text: nothing to complete")
    return messages


def _message(value: object, where: str) -> Message:
    if not isinstance(value, dict):
        raise wrong(where, value, "an object with role and content")
    role = value.get("role")
    if role not in ROLES:
        raise wrong(f"{where}.role", role, " or ".join(ROLES))
    for name in ("tool_calls", "function_call", "audio"):
        if value.get(name):
            raise RequestError(f"{where}.{name}: found {found(value[name])}, which is not done here")
    content = value.get("content")
    if isinstance(content, list):
        content = _joined(content, f"{where}.content")
    if not isinstance(content, str):
        raise wrong(f"{where}.content", content, "a text or a list of text parts")
    return {"role": "system" if role == "developer" else role, "content": content}


def _joined(parts: Sequence[object], where: str) -> str:
    texts = []
    for index, part in enumerate(parts):
        kind = part.get("type") if isinstance(part, dict) else part
        text = part.get("text") if isinstance(part, dict) and kind == "text" else None
        if not isinstance(text, str):
            raise RequestError(f"{where}[{index}]: found a part of type {found(kind)}, expected a text part")
        texts.append(text)
    return "\n".join(texts)
