"""What a batch asks for, checked as far as can be without reading its input: an order for the front desk."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from coordinator.api.replies import ApiError, wrong
from coordinator.api.uploads import Uploads
from coordinator.client import job_form
from coordinator.client.job_form import JobForm
from coordinator.control.front_desk import Order
from coordinator.intake.checks import check_options
from coordinator.intake.prompts import PLACEHOLDER
from coordinator.intake.requests import CHAT_URL, COMPLETIONS_URL, EMBEDDINGS_URL
from coordinator.outputs.preflight import check_space
from coordinator.outputs.results import check_kind
from fleet.config import StateDir
from fleet.errors import UsageError
from fleet.job import Task

T = TypeVar("T")
#: What a batch may be for, and the task that it means unless its metadata says another.
ENDPOINTS = {CHAT_URL: Task.GENERATE, COMPLETIONS_URL: Task.GENERATE, EMBEDDINGS_URL: Task.EMBED}
#: OpenAI's one window; a promise nobody here can give or break.
WINDOW = "24h"
#: A first line longer than this is not looked into, bytes.
LOOK_BYTES = 16 << 20
_NO_MODEL = "found none: name a model folder or hub id there, or as body.model in the file's first line"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A batch as it was asked for."""

    input_file_id: str
    endpoint: str
    completion_window: str
    metadata: Mapping[str, str]

    @classmethod
    def read(cls, body: Mapping[str, Any]) -> Wanted:
        """What the body of a request says; ApiError naming the field that is wrong."""
        for name in ("input_file_id", "endpoint", "completion_window"):
            if not isinstance(body.get(name), str):
                raise wrong(name, "expected a text")
        if body["endpoint"] not in ENDPOINTS:
            raise wrong("endpoint", f"found {body['endpoint'][:60]!r}, expected {' or '.join(ENDPOINTS)}")
        if body["completion_window"] != WINDOW:
            raise wrong("completion_window", f"found {body['completion_window'][:60]!r}, expected {WINDOW!r}")
        metadata = body.get("metadata") or {}
        if not isinstance(metadata, dict):
            raise wrong("metadata", "expected an object")
        _of_metadata(lambda: job_form.check_metadata(metadata))
        return cls(
            input_file_id=body["input_file_id"],
            endpoint=body["endpoint"],
            completion_window=body["completion_window"],
            metadata=metadata,
        )


def order(wanted: Wanted, uploads: Uploads, state: StateDir, output: str) -> Order:
    """The order, its `output` with an ending; ApiError or an error of ours for what can be found wrong now."""
    first = _path(uploads, wanted.input_file_id, "input_file_id")
    line = first_line(first)
    url = line.get("url")
    ours = f"{job_form.PREFIX}task" in wanted.metadata  # what a task does with which line is for intake to say
    if not ours and isinstance(line.get("body"), dict) and isinstance(url, str) and url != wanted.endpoint:
        raise wrong("endpoint", f"the file's first line is for {url[:60]!r}", "mismatched_endpoint")
    form = _form(wanted, model_in(line))
    inputs = [first, *(_path(uploads, id, "metadata.fleet_more_inputs") for id in form.more_inputs)]
    check_model(form.options.model)
    check_space([state.root], [str(path) for path in inputs])
    return Order(
        options=form.options,
        inputs=tuple(map(str, inputs)),
        output=f"{output}.{form.form}",
        priority=form.priority,
        fresh=form.fresh,
    )


def first_line(path: Path) -> Mapping[str, Any]:
    """The JSON object in a file's first line; empty for anything else."""
    with path.open("rb") as stream:
        line = stream.readline(LOOK_BYTES)
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def model_in(line: Mapping[str, Any]) -> str | None:
    """The model that a batch line's body, or a flat line itself, names."""
    body = line.get("body", line)
    model = body.get("model") if isinstance(body, dict) else None
    return model if isinstance(model, str) and model else None


def check_model(model: str) -> None:
    """Raises ApiError for a model that is no hub id and no folder on this machine."""
    if not model.isprintable():  # it goes to logs and terminals
        raise wrong("model", f"found {model[:200]!r}, expected a name or a path", "model_not_found")
    path = Path(model).expanduser()
    is_name = model.count("/") == 1 and not model.startswith((".", "/", "~"))
    if is_name or (path / "config.json").is_file():
        return
    where = f"there is no model folder {model[:200]} on the coordinator's Mac"
    advice = "copy it there (and to the workers, at the same path), or name a hub id like org/name"
    advice += "; metadata.fleet_model names the model where the lines name another"
    raise ApiError(400, f"{where}: {advice}", code="model_not_found", param="model")


def _form(wanted: Wanted, model: str | None) -> JobForm:
    form = _of_metadata(lambda: job_form.read_form(wanted.metadata, task=ENDPOINTS[wanted.endpoint], model=model))
    options = form.options
    if not options.model:
        raise wrong("metadata.fleet_model", _NO_MODEL, "model_not_found")
    if options.prompt_template is not None and PLACEHOLDER not in options.prompt_template:
        # never the name of a file of ours
        raise wrong("metadata.fleet_prompt_template", f"found no {PLACEHOLDER}, expected the template itself")
    _of_metadata(lambda: check_options(options, _ANY_CONTEXT))
    _of_metadata(lambda: check_kind(f"an output in .{form.form}", options.task))
    return form


#: The model's own context is looked at when it is known.
_ANY_CONTEXT = 1 << 62


def _of_metadata(work: Callable[[], T]) -> T:
    """The outcome of `work`; its UsageErrors become answers that name the metadata."""
    try:
        return work()
    except UsageError as error:
        field = getattr(error, "field", "metadata")
        raise ApiError(400, str(error), code="invalid_metadata", param=field) from error


def _path(uploads: Uploads, id: str, param: str) -> Path:
    upload = uploads.get(id)
    if upload is None:
        raise wrong(param, f"there is no file {id[:60]}", "file_not_found")
    return uploads.path(upload)
