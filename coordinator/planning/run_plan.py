"""The plan that a run makes for itself, so that its report can say how far plans are off."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from coordinator.planning.plan import LABELS, UNKNOWN, Load, Machine, plan
from coordinator.planning.planning import learnt
from coordinator.records import JobStatus, NewRequest
from fleet.job import Task

#: A run that computed less of its rows, because the others were known, says nothing about plans.
LEAST_COMPUTED = 0.9


class RunPlan:
    """Counts a run's rows while they are read, and reckons as `fleet plan` would have before the run."""

    def __init__(self, machine: Machine | None, task: Task, model_hash: str, jobs: Sequence[JobStatus]) -> None:
        """`machine` is None where no speed was known, `jobs` are those recorded by then."""
        self._machine = machine if task is not Task.EMBED else None
        self._task = task
        self._model_hash = model_hash
        self._jobs = jobs
        self._load = Load()
        self._requests = 0

    def watch(self, chunks: Iterable[list[NewRequest]]) -> Iterator[list[NewRequest]]:
        """The chunks as they are."""
        for chunk in chunks:
            for request in chunk if self._machine is not None else ():
                self._requests += request.error is None
                for row in request.rows:
                    self._load.add(row.length, row.max_tokens)
            yield chunk

    def seconds(self, computed: int) -> float | None:
        """What a plan gave for the rows that were computed; None without one, or when most were known."""
        rows = self._load.rows
        if self._machine is None or not rows or computed < LEAST_COMPUTED * rows:
            return None
        told = learnt(self._jobs, self._task, self._model_hash, rows / max(self._requests, 1))
        answers = LABELS if self._task is Task.CLASSIFY else told or UNKNOWN
        return plan(self._load, [self._machine], answers).seconds[1] * computed / rows
