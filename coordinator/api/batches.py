"""Which jobs were ordered as batches, and what was said with the order: a small file each in the state folder.

batches/<job>.json        the record
batches/<random>/output.* what the job wrote when it ended, its failed requests beside it
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Container, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from coordinator.api.uploads import Uploads, read_json, write_json
from coordinator.outputs.results import errors_file
from fleet.config import StateDir
from fleet.errors import StorageError


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRecord:
    """An order as it came."""

    #: the ledger's job, which also gives the batch its id
    job: int
    input_file_id: str
    endpoint: str
    completion_window: str
    #: as given, our own options included
    metadata: Mapping[str, str] = field(default_factory=dict)
    #: model as ordered
    model: str
    #: absolute path
    output: str
    #: unix seconds
    created: float
    #: when a cancel was asked for, unix seconds; None when none was
    cancelling: float | None = None

    @property
    def inputs(self) -> tuple[str, ...]:
        """Ids of all uploads that are read."""
        more = self.metadata.get("fleet_more_inputs", "")
        return (self.input_file_id, *filter(None, more.split(",")))

    @property
    def errors(self) -> str:
        """Absolute path of the list of failed requests."""
        return str(errors_file(self.output))


class Batches:
    """The batches of one state folder; safe to use from several threads."""

    def __init__(self, state: StateDir) -> None:
        self._root = state.root / "batches"

    def new_output(self) -> str:
        """A path that no other job writes, without its ending."""
        folder = self._root / secrets.token_hex(12)
        try:
            folder.mkdir(parents=True, mode=0o700)
        except OSError as error:
            raise StorageError(f"no output can be written on the coordinator's Mac ({error.strerror})") from error
        return str(folder / "output")

    def drop_output(self, output: str) -> None:
        """Takes back a path that no job will write."""
        Path(output).parent.rmdir()

    def keep(self, record: BatchRecord) -> None:
        """Writes the record."""
        write_json(self._root / f"{record.job}.json", asdict(record))

    def cancelling(self, record: BatchRecord, now: float) -> BatchRecord:
        """Notes when it was first asked to cancel."""
        noted = record if record.cancelling else replace(record, cancelling=now)
        self.keep(noted)
        return noted

    def get(self, job: int) -> BatchRecord | None:
        """The record of a job, None when it was not ordered as a batch."""
        about = read_json(self._root / f"{job}.json")
        return None if about is None else BatchRecord(**about)

    def all(self) -> list[BatchRecord]:
        """Every record, newest first."""
        jobs = sorted((int(path.stem) for path in self._root.glob("*.json") if path.stem.isdigit()), reverse=True)
        return [record for record in map(self.get, jobs) if record is not None]

    def forget(self, jobs: Container[int]) -> set[str]:
        """Removes the records and outputs of these jobs; ids of uploads that only they read."""
        records = self.all()
        gone = [record for record in records if record.job in jobs]
        for record in gone:
            shutil.rmtree(Path(record.output).parent, ignore_errors=True)
            (self._root / f"{record.job}.json").unlink(missing_ok=True)
        needed = {id for record in records if record.job not in jobs for id in record.inputs}
        return {id for record in gone for id in record.inputs} - needed


def forget_batches(state: StateDir, jobs: Container[int]) -> None:
    """Removes what was kept of these jobs beside the ledger, and the uploads that no other job reads."""
    uploads = Uploads(state)
    for id in Batches(state).forget(jobs):
        uploads.delete(id)


def written(path: str) -> os.stat_result | None:
    """What is known of an output file; None when it was not written, or is empty."""
    try:
        about = Path(path).stat()
    except OSError:
        return None
    return about if about.st_size else None
