"""Prompts as OpenAI's bodies hold them: a text, texts, token ids, or lists of token ids."""

from __future__ import annotations

from typing import Any

from coordinator.intake.fields import wrong
from fleet.errors import RequestError


def read_prompts(value: object, name: str, verb: str) -> tuple[str | tuple[int, ...], ...]:
    """The prompts in the field `name`; RequestError when there is none to `verb`."""
    items: list[Any] = value if isinstance(value, list) else [value]
    if _are_ids(value):
        return (tuple(items),)
    if not items or not (all(isinstance(item, str) for item in items) or all(map(_are_ids, items))):
        raise wrong(name, value, "a text, a list of texts, a list of token ids, or a list of such lists")
    if any(isinstance(item, str) and not item for item in items):
        raise RequestError(f"{name} is empty: nothing to {verb}")
    return tuple(item if isinstance(item, str) else tuple(item) for item in items)


def _are_ids(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(type(item) is int for item in value)
