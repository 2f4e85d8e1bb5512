"""What must be known before a submitted job can be read: its model's folder and hash, its input's form."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from coordinator.control.front_desk import Order
from coordinator.intake.intake import Intake, IntakeOptions
from coordinator.records import JobRecord, JobSpec
from fleet.config import StateDir
from fleet.errors import ModelError, UsageError
from fleet.job import Task
from fleet.model import find_model, weights_hash


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A job ready to be read."""

    #: sha256 of the weight files, hex
    model_hash: str
    intake: Intake
    #: of the input as it is now
    signature: str


def spec_of(order: Order) -> JobSpec:
    """What identifies an ordered job, before its weights are read. UsageError for input that only a terminal has."""
    if "-" in order.inputs:
        raise UsageError("standard input is nothing to submit: name files")
    return JobSpec(
        task=order.options.task,
        model=order.options.model,
        model_hash="",
        inputs=order.inputs,
        output=order.output,
        options=json.dumps(asdict(order.options), sort_keys=True),
    )


def prepare(job: JobRecord, state: StateDir) -> Prepared:
    """Finds the model, fetching a hub id that is not here yet, hashes it and looks at the input. Slow: minutes.

    Raises FleetError for a model or an input that cannot be worked on.
    """
    try:
        folder = find_model(job.spec.model)
    except ModelError as error:
        raise ModelError(f"on the coordinator's Mac: {error}") from error
    model_hash = weights_hash(folder, state.root / "hashes.json")
    intake = Intake(job.spec.inputs, options_of(job.spec), folder, model_hash)
    intake.use_salt(job.salt)
    return Prepared(model_hash=model_hash, intake=intake, signature=intake.signature())


def options_of(spec: JobSpec) -> IntakeOptions:
    """The options as they were given."""
    fields: dict[str, Any] = json.loads(spec.options)
    tuples = {name: tuple(value) for name, value in fields.items() if isinstance(value, list)}
    return IntakeOptions(**{**fields, **tuples, "task": Task(fields["task"])})
