"""One text embedded here and now, by the engine that embeds backlogs, in a state folder that is gone afterwards."""

from __future__ import annotations

import json
import logging
import shutil
import tempfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from coordinator.control.job_run import JobRun
from coordinator.control.local_run import LocalRun, RunOptions
from coordinator.control.processes import Processes
from coordinator.intake.feed import Feed
from coordinator.intake.intake import Intake
from coordinator.intake.options import IntakeOptions
from coordinator.intake.vector_options import ERROR
from coordinator.ledger.ledger import Ledger
from coordinator.ledger.vectors import unpack
from coordinator.outputs.vector_files import Origin
from coordinator.records import JobSpec
from fleet.config import StateDir
from fleet.encoder_folder import read_encoder
from fleet.errors import InterruptedRunError, ModelError, UsageError
from fleet.job import RequestState, Task
from fleet.model import weights_hash

#: The prompt of queries, where a model has one.
QUERY = "query"


def embed_query(text: str, folder: Path, origin: Origin, known: StateDir) -> NDArray[np.floating]:
    """The vector of `text` by the model in `folder`, which must be the one of `origin`; ModelError when it is not.

    What is `known` of models on this machine is used, and nothing is written there.
    """
    with tempfile.TemporaryDirectory(prefix="fleet-search-") as name:
        state = StateDir(Path(name))
        state.make()
        for file in ("hashes.json", known.knees.name):
            if (known.root / file).is_file():
                shutil.copyfile(known.root / file, state.root / file)
        logging.basicConfig(filename=state.logs / "coordinator.log", level=logging.INFO)
        model_hash = weights_hash(folder, state.root / "hashes.json")
        check_model(folder, model_hash, origin)
        asked = Path(name) / "query.jsonl"
        asked.write_text(json.dumps({"text": text}) + "\n", encoding="utf-8")
        return _run(state, asked, folder, model_hash, origin.dimensions)


def check_model(folder: Path, model_hash: str, origin: Origin) -> None:
    """Raises ModelError when the model in `folder` makes other vectors than those of `origin`."""
    encoder = read_encoder(folder)
    if model_hash != origin.model_hash or origin.encoder_hash not in ("", encoder.hash):
        raise ModelError(
            f"the vectors were made by {origin.model}, and {folder} is another model or was changed since: "
            "give the same one with -m, or embed again"
        )


def _run(state: StateDir, asked: Path, folder: Path, model_hash: str, dimensions: int) -> NDArray[np.floating]:
    encoder = read_encoder(folder)
    options = IntakeOptions(
        task=Task.EMBED,
        model=str(folder),
        long=ERROR,
        dimensions=dimensions,
        prompt_name=QUERY if QUERY in encoder.prompts else None,
    )
    spec = JobSpec(
        task=Task.EMBED, model=str(folder), model_hash=model_hash, inputs=(str(asked),), output="-", options="{}"
    )
    with Ledger.open(state) as ledger:
        job, _ = ledger.begin_job(spec)
        intake = Intake([str(asked)], options, folder, model_hash)
        run = JobRun(job, ledger, intake.reduce, feed=Feed(intake.chunks()))
        try:
            LocalRun(run, ledger, state, Processes(state), RunOptions(cap=1)).go(lambda _view: None)
        except InterruptedRunError as error:
            raise InterruptedRunError("interrupted before the query had its vector") from error
        (answer,) = ledger.answers(job.id, vectors=True)
    if answer.state is not RequestState.DONE:
        raise UsageError(f"the query cannot be embedded: {answer.error}")
    return unpack(answer.parts[0].vector, options.dtype)
