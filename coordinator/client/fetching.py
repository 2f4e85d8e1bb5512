"""Brings a job's answers from the coordinator to OUT, with what lies beside it."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import IO

from coordinator.client.fleet_client import FleetClient
from coordinator.outputs.bundle import STREAM, unpack
from coordinator.outputs.draft import draft
from coordinator.outputs.results import STDOUT, ResultCounts, drop_errors, errors_file
from coordinator.records import Source
from coordinator.screens.failures import Failure, Failures

#: Endings that are written by the coordinator; any other is JSONL.
_FORMS = ("parquet", "npy")


def fetch(client: FleetClient, job: int, output: str, stdout: IO[bytes] | None = None) -> ResultCounts:
    """Writes what the job has so far, as `results.write_results` does here."""
    kept: set[str] = set()
    form = STREAM if output == STDOUT else _form(output)

    def keep(beside: str, file: IO[bytes]) -> None:
        kept.add(f"{output}{beside}")
        if output == STDOUT:
            shutil.copyfileobj(file, stdout or sys.stdout.buffer)
            return
        with draft(Path(f"{output}{beside}")) as paper:
            shutil.copyfileobj(file, paper.stream)
            paper.keep()

    with client.opened(f"/fleet/jobs/{job}/answers", form=form) as (stream, counts):
        unpack(stream, form, keep)
    if output == STDOUT:
        (stdout or sys.stdout.buffer).flush()
    elif str(errors_file(output)) not in kept:
        drop_errors(output)
    return ResultCounts(**counts)


def failures_in(output: str) -> tuple[Failure, ...]:
    """The failed requests listed beside `output`, by kind."""
    found = Failures()
    listed = errors_file(output)
    if listed.exists():
        with listed.open(encoding="utf-8") as lines:
            for line in map(json.loads, lines):
                error = line["error"]
                why = error["message"] if isinstance(error, dict) else error
                found.add(why, line.get("custom_id", line.get("id")), Source(file=line["source"], line=0))
    return found.kinds()


def _form(output: str) -> str:
    ending = Path(output).suffix.lower().removeprefix(".")
    return ending if ending in _FORMS else "jsonl"
