"""What a plan rests on: the backlog as it is read, speeds that were measured, answers of earlier jobs."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from coordinator.intake.dry_run import DryRun
from coordinator.ledger.ledger import Ledger
from coordinator.planning.machine import longest_row, memory_bytes
from coordinator.planning.plan import (
    LABELS,
    PROMPT_OVER_DECODE,
    UNKNOWN,
    Answers,
    Load,
    Machine,
    Rates,
    expected_answers,
    machine,
)
from coordinator.records import JobStatus, NewRequest
from coordinator.screens.snapshot import FleetSnapshot, MacLine
from fleet.config import StateDir
from fleet.curve import bucket_of
from fleet.job import Task
from fleet.knees import Measured, measured


class Reading:
    """An input's requests, counted as they are read."""

    def __init__(self) -> None:
        self.found = DryRun(keep_errors=False)
        self.load = Load()

    def add(self, requests: Iterable[NewRequest]) -> None:
        """Counts these requests, and the rows of the good ones."""
        for request in requests:
            failed = self.found.failed
            self.found.add([request])
            if self.found.failed == failed:
                for row in request.rows:
                    self.load.add(row.length, row.max_tokens)

    @property
    def rows_per_request(self) -> float:
        """Of good requests, on average."""
        return self.load.rows / max(self.found.requests - self.found.failed, 1)


def this_machine(state: StateDir, folder: Path, model_hash: str) -> Machine | None:
    """This machine with what was measured of the model on it; None when nothing was."""
    known = [entry for entry in measured(state.knees, model_hash) if entry.curves]
    if not known:
        return None
    entry = _likeliest(known)
    return machine(entry.machine, entry.curves, longest_row(folder, memory_bytes()))


def macs_of(snapshot: FleetSnapshot, model: str, folder: Path) -> list[Machine]:
    """The fleet's Macs that have told their speed with the model; `model` is its name as given, `folder` where it is
    here."""
    names = {model.rstrip("/"), str(folder), folder.name}
    macs = [mac for mac in snapshot.macs if {mac.model, mac.model.rpartition("/")[2]} & names]
    return [
        Machine(name=mac.name, rates={bucket_of(0): rates}, longest_tokens=longest_row(folder, mac.memory_bytes))
        for mac in macs
        if (rates := _told_rates(mac)) is not None
    ]


def _told_rates(mac: MacLine) -> Rates | None:
    decode_tps = max(mac.measured_tps, mac.output_tps)
    if decode_tps <= 0 or not mac.cap:
        return None
    return Rates(batch=mac.cap, decode_tps=decode_tps, prefill_tps=PROMPT_OVER_DECODE * decode_tps)


def _likeliest(known: list[Measured]) -> Measured:
    """The one of this machine, as far as its number of cores tells; a folder is rarely used by two."""
    ours = [entry for entry in known if f", {os.cpu_count()} cores" in entry.machine]
    return (ours or known)[-1]


def answers(state: StateDir, task: Task, model_hash: str, rows_per_request: float) -> Answers:
    """How long answers are expected to be: as in earlier jobs of this task and model, if there were any."""
    if task is Task.CLASSIFY:
        return LABELS
    jobs = []
    if state.has_ledger():
        with Ledger.read(state) as ledger:
            jobs = ledger.jobs()
    return learnt(jobs, task, model_hash, rows_per_request) or UNKNOWN


def learnt(jobs: Iterable[JobStatus], task: Task, model_hash: str, rows_per_request: float) -> Answers | None:
    """What the answers in `jobs` tell; None when there is none of this task and model."""
    alike = [job for job in jobs if (job.record.spec.task, job.record.spec.model_hash) == (task, model_hash)]
    return expected_answers(
        (job.counts.done, job.counts.output_tokens / job.counts.done / max(rows_per_request, 1e-9))
        for job in alike
        if job.counts.done
    )
