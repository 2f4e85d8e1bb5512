"""Which job each worker works for next. Pure: views in, an offer for each worker out.

Jobs go by priority, then by age. Among jobs of equal priority a worker prefers one of the model it holds, so that a
model is not loaded for every job in turn; but the oldest of them always has a worker.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

Model = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A job that has rows to send."""

    job: int
    priority: int
    model: Model


@dataclass(frozen=True, slots=True, kw_only=True)
class Hands:
    """A worker that takes work."""

    worker: str
    #: hash of the model its engine holds, empty without one
    holds: str
    #: models of the rows it was sent and has not answered
    busy_with: frozenset[Model]
    #: models it could not load
    refused: frozenset[Model]

    def may_take(self, model: Model) -> bool:
        """Whether rows of `model` can go to it now: it answers those of one model before another is loaded, so rows
        sent earlier would only wait where nobody else can take them."""
        return model not in self.refused and self.busy_with <= {model}


def in_order(jobs: Sequence[Wanted]) -> list[Wanted]:
    """The jobs as they come to their turn."""
    return sorted(jobs, key=lambda job: (-job.priority, job.job))


def offers(
    jobs: Sequence[Wanted], workers: Sequence[Hands], fits: Callable[[int, str], bool] = lambda _job, _worker: True
) -> dict[int, list[str]]:
    """The workers of each job, jobs in their order; `fits(job, worker)` says whether a row of it fits there."""
    ordered = in_order(jobs)
    given: dict[int, list[str]] = {job.job: [] for job in ordered}
    served = {model for hands in workers for model in hands.busy_with}
    held = {hands.holds for hands in workers}
    # first those who hold nothing of use: it is they who load the model of a job that has no worker
    for hands in sorted(workers, key=lambda hands: any(hands.holds == job.model[1] for job in ordered)):
        can = [job for job in ordered if hands.may_take(job.model) and fits(job.job, hands.worker)]
        if not can:
            continue
        first = can[0]
        kept = [job for job in can if job.priority == first.priority and job.model[1] == hands.holds]
        waits = first.model not in served and first.model[1] not in held
        chosen = kept[0] if kept and not waits else first
        served.add(chosen.model)
        given[chosen.job].append(hands.worker)
    return {job: hands for job, hands in given.items() if hands}
