"""Options of a job as texts of a batch's metadata, and back."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from coordinator.client.job_form import FieldError, JobForm, check_metadata, read_form, write_form
from coordinator.intake.options import IntakeOptions
from fleet.errors import UsageError
from fleet.job import Task

#: A value that is no default for every option.
OTHER: dict[str, Any] = {
    "task": Task.CLASSIFY,
    "model": "org/name",
    "max_tokens": 7,
    "temperature": 0.5,
    "top_p": 0.9,
    "seed": -3,
    "stop": ("[x", "\n", "a,b"),
    "system": "You are brief.",
    "prompt_template": "say {text}",
    "id_field": "key",
    "text_field": "body",
    "limit": 4,
    "labels": ("a, b", "c"),
    "split": False,
    "think": False,
    "long": "truncate",
    "dtype": "float16",
    "dimensions": 64,
    "prompt_name": "query",
}


def read(**metadata: str) -> JobForm:
    return read_form(metadata, task=Task.GENERATE, model="org/usual")


def test_every_option_but_the_day_can_be_said() -> None:
    assert OTHER.keys() == {field.name for field in fields(IntakeOptions)} - {"today"}


@pytest.mark.parametrize("name", OTHER)
def test_an_option_comes_back_as_it_was_said(name: str) -> None:
    usual = IntakeOptions(task=Task.GENERATE, model="org/usual")
    form = JobForm(options=replace(usual, **{name: OTHER[name]}))
    said = write_form(form)
    assert all(isinstance(value, str) for value in said.values())
    assert read_form(said, task=Task.SUMMARIZE, model=None) == form


def test_a_whole_form_comes_back() -> None:
    options, ids = IntakeOptions(**OTHER), ("file-a", "file-b")
    form = JobForm(options=options, priority=-2, fresh=True, more_inputs=ids, form="npy")
    assert read_form(write_form(form), task=Task.GENERATE, model=None) == form


def test_what_is_not_said_is_the_batchs_own() -> None:
    form = read(note="whatever", team="blue")
    assert form == JobForm(options=IntakeOptions(task=Task.GENERATE, model="org/usual"))


def test_labels_may_stand_with_commas_between() -> None:
    assert read(fleet_labels="work, private,spam").options.labels == ("work", "private", "spam")
    assert read(fleet_stop="a,b").options.stop == ("a,b",)


@pytest.mark.parametrize(
    ("field", "text", "message"),
    [
        ("fleet_max_token", "5", "there is no such option, did you mean fleet_max_tokens?"),
        ("fleet_today", "2026-01-01", "there is no such option"),
        ("fleet_max_tokens", "5.0", "found '5.0', expected a whole number"),
        ("fleet_max_tokens", "", "found '', expected a whole number"),
        ("fleet_seed", "9" * 20, "expected a whole number"),
        ("fleet_temperature", "nan", "found 'nan', expected a number"),
        ("fleet_temperature", "inf", "expected a number"),
        ("fleet_think", "True", "found 'True', expected true or false"),
        ("fleet_stop", "[1]", "expected a JSON list of texts"),
        ("fleet_labels", "[broken", "expected a text or a JSON list of texts"),
        ("fleet_priority", "1001", "expected a whole number from -1000 to 1000"),
        ("fleet_task", "dance", "expected generate or"),
        ("fleet_form", "exe", "found 'exe', expected jsonl or parquet or npy"),
    ],
)
def test_what_cannot_be_names_its_field(field: str, text: str, message: str) -> None:
    with pytest.raises(FieldError) as caught:
        read(**{field: text})
    assert str(caught.value).startswith(f"metadata.{field}: ")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({f"k{n}": "" for n in range(65)}, "found 65 keys"),
        ({"k" * 65: ""}, "a key of 65 characters"),
        ({"n": 5}, "metadata.n: expected a text"),
        ({"n": "x" * 513}, "expected at most 512"),
        ({"fleet_system": "x" * 65_537}, "expected at most 65,536"),
    ],
)
def test_metadata_is_bounded(metadata: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        check_metadata(metadata)
    assert message in str(caught.value)


def test_a_long_template_fits() -> None:
    check_metadata({"fleet_prompt_template": "{text}" + "x" * 60_000})
