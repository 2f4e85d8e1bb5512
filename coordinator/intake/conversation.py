"""The messages of a chat request, checked and made plain: a role and one text each."""

from __future__ import annotations

from collections.abc import Sequence

from coordinator.intake.fields import found, wrong
from fleet.errors import RequestError

ROLES = ("system", "developer", "user", "assistant")

#: A message as chat templates read it: role and content.
Message = dict[str, str]


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
