"""The custom_id of a request: the line's own, or one made here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from coordinator.intake import fields
from coordinator.intake.fields import found, wrong
from coordinator.intake.formats import Record
from coordinator.intake.options import IntakeOptions
from fleet.errors import RequestError


def batch_id(line: Mapping[str, Any]) -> str:
    """The id of an OpenAI batch line; RequestError when it has none."""
    custom_id = line.get("custom_id")
    if custom_id is None:
        raise RequestError("custom_id is missing")
    if not isinstance(custom_id, str) or not custom_id:
        raise wrong("custom_id", custom_id, "a string that is not empty")
    return custom_id


def flat_id(record: Record, ordinal: int, options: IntakeOptions) -> str:
    """The id of a flat record, the `ordinal`-th of the backlog; RequestError when its id is none."""
    name = id_field_of(record, options)
    if name is None:
        return record.name or f"row-{ordinal}"
    value = record.value.get(name)
    if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
        raise wrong(str(name), value, "an id: a text that is not empty, or an integer")
    return str(value)


def makes_id(record: Record, options: IntakeOptions) -> bool:
    """Whether the line names no id, so that it gets one of our making."""
    return isinstance(record.value, dict) and not record.name and id_field_of(record, options) is None


def id_field_of(record: Record, options: IntakeOptions) -> str | None:
    """The field of a flat record that holds its id, None for none, as of a text file, which is named by its own name;
    RequestError when the one asked for is missing."""
    value = record.value
    if record.name:
        return None
    if options.id_field is not None:
        if options.id_field not in value:
            raise RequestError(f"no field {found(options.id_field)} for the id: found {fields.names(value)}")
        return options.id_field
    return next((name for name in ("custom_id", "id") if value.get(name) is not None), None)
