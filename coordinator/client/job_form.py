"""A job's options as an OpenAI batch carries them: texts in its `metadata`, each under a name of ours.

fleet_task, fleet_model, fleet_max_tokens, ...: the fields of IntakeOptions. Numbers and true or false are written as
JSON writes them, several texts as a JSON list; labels may also stand with commas between.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, get_type_hints

from coordinator.intake.options import IntakeOptions
from fleet.errors import UsageError
from fleet.flags import did_you_mean
from fleet.job import Task

PREFIX = "fleet_"
#: Names beside the fields of IntakeOptions.
PRIORITY, FRESH, MORE_INPUTS, FORM = "priority", "fresh", "more_inputs", "form"
#: What the coordinator writes a job's output as, by its ending.
FORMS = ("jsonl", "parquet", "npy")
#: What OpenAI allows for a value; ours may be longer, since a prompt template is.
VALUE_CHARS = 512
OWN_VALUE_CHARS = 64 << 10
KEYS = 64
KEY_CHARS = 64
_PRIORITIES = range(-1_000, 1_001)
#: Decided by the day and by nobody else.
_NOT_GIVEN = frozenset({"today"})


@dataclass(frozen=True, slots=True, kw_only=True)
class JobForm:
    """What an order says beside its files."""

    options: IntakeOptions
    #: higher goes first
    priority: int = 0
    fresh: bool = False
    #: ids of uploads that are read after the first one
    more_inputs: tuple[str, ...] = ()
    #: one of FORMS
    form: str = FORMS[0]


class FieldError(UsageError):
    """Raised when a field of the metadata cannot be worked on; names it."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"metadata.{field}: {message}")
        self.field = f"metadata.{field}"


def write_form(form: JobForm) -> dict[str, str]:
    """The metadata that says `form`; what is at its default is left out."""
    usual = IntakeOptions(task=Task.GENERATE, model="")
    said = {
        field.name: getattr(form.options, field.name)
        for field in fields(IntakeOptions)
        if field.name in ("task", "model") or getattr(form.options, field.name) != getattr(usual, field.name)
    }
    said |= {PRIORITY: form.priority} if form.priority else {}
    said |= {FRESH: form.fresh} if form.fresh else {}
    said |= {MORE_INPUTS: ",".join(form.more_inputs)} if form.more_inputs else {}
    said |= {FORM: form.form} if form.form != FORMS[0] else {}
    return {f"{PREFIX}{name}": value if isinstance(value, str) else json.dumps(value) for name, value in said.items()}


def read_form(metadata: Mapping[str, str], *, task: Task, model: str | None) -> JobForm:
    """The form that `metadata` says; `task` and `model` are those of the batch, where it names none.

    FieldError for a name that there is not, or a value that cannot be.
    """
    kinds = _readers()
    said: dict[str, Any] = {}
    for key, text in metadata.items():
        if not key.startswith(PREFIX):
            continue
        read = kinds.get(key.removeprefix(PREFIX))
        if read is None:
            raise FieldError(key, f"there is no such option{did_you_mean(key, [PREFIX + kind for kind in kinds])}")
        try:
            said[key.removeprefix(PREFIX)] = read(text)
        except ValueError as error:
            raise FieldError(key, str(error)) from error
    form = JobForm(
        options=IntakeOptions(task=task, model=model or ""),
        priority=said.pop(PRIORITY, 0),
        fresh=said.pop(FRESH, False),
        more_inputs=said.pop(MORE_INPUTS, ()),
        form=said.pop(FORM, FORMS[0]),
    )
    return replace(form, options=replace(form.options, **said))


def check_metadata(metadata: Mapping[str, Any]) -> None:
    """Raises FieldError for metadata that is not texts, or too much of it."""
    if len(metadata) > KEYS:
        raise UsageError(f"metadata: found {len(metadata)} keys, expected at most {KEYS}")
    for key, value in metadata.items():
        longest = OWN_VALUE_CHARS if key.startswith(PREFIX) else VALUE_CHARS
        if len(key) > KEY_CHARS:
            raise UsageError(f"metadata: a key of {len(key)} characters, expected at most {KEY_CHARS}")
        if not isinstance(value, str):
            raise FieldError(key, "expected a text")
        if len(value) > longest:
            raise FieldError(key, f"a text of {len(value):,} characters, expected at most {longest:,}")


def _readers() -> dict[str, Callable[[str], Any]]:
    """How each option is read, by its name without the prefix."""
    hints = get_type_hints(IntakeOptions)
    kinds = {field.name: _reader(field.name, hints[field.name]) for field in fields(IntakeOptions)}
    own = {PRIORITY: _priority, FRESH: _truth, MORE_INPUTS: _ids, FORM: _form}
    return {name: kind for name, kind in kinds.items() if name not in _NOT_GIVEN} | own


def _reader(name: str, kind: Any) -> Callable[[str], Any]:
    if kind is Task:
        return _task
    if kind == tuple[str, ...]:
        return _labels if name == "labels" else _texts
    for plain, read in ((bool, _truth), (int, _whole), (float, _number)):
        if kind in (plain, plain | None):
            return read
    assert kind in (str, str | None), f"no way to read an option of type {kind}"
    return str


def _task(text: str) -> Task:
    try:
        return Task(text)
    except ValueError as error:
        raise ValueError(f"found {text[:40]!r}, expected {' or '.join(Task)}") from error


def _truth(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError(f"found {text[:40]!r}, expected true or false")
    return text == "true"


def _whole(text: str) -> int:
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) < 20):
        raise ValueError(f"found {text[:40]!r}, expected a whole number")
    return int(text)


def _priority(text: str) -> int:
    value = _whole(text)
    if value not in _PRIORITIES:
        raise ValueError(f"found {value}, expected a whole number from {_PRIORITIES[0]} to {_PRIORITIES[-1]}")
    return value


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not abs(value) < float("inf"):
        raise ValueError(f"found {text[:40]!r}, expected a number")
    return value


def _texts(text: str) -> tuple[str, ...]:
    if not text.startswith("["):
        return (text,)
    try:
        items = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError("expected a text or a JSON list of texts") from error
    if not all(isinstance(item, str) for item in items):
        raise ValueError("expected a JSON list of texts")
    return tuple(items)


def _labels(text: str) -> tuple[str, ...]:
    return _texts(text) if text.startswith("[") else tuple(label.strip() for label in text.split(","))


def _form(text: str) -> str:
    if text not in FORMS:
        raise ValueError(f"found {text[:40]!r}, expected {' or '.join(FORMS)}")
    return text


def _ids(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))
