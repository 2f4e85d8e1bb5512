"""Jobs as others may see them: what the ledger has, and what the controller knows of those it works on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from coordinator.control.front_desk import FrontDesk
from coordinator.ledger.ledger import Ledger
from coordinator.records import JobStatus
from coordinator.screens.job_table import as_dict
from coordinator.screens.snapshot import JobLine
from fleet.config import StateDir
from fleet.job import JobState

#: States of a job that nobody works on any more.
OVER = frozenset({"finished", "failed", "cancelled"})
#: What a job is that is to run and that no process works on.
INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSeen:
    """One job now."""

    status: JobStatus
    #: as `snapshot.JobLine.state`, or interrupted
    state: str
    #: why it failed, empty when it did not
    error: str = ""
    #: what the controller knows of it, None when it is not concerned with it
    line: JobLine | None = None

    @property
    def id(self) -> int:
        """The ledger's id."""
        return self.status.record.id

    def as_dict(self) -> dict[str, Any]:
        """As JSON has it: what is recorded, and the rates where somebody works on it."""
        live = asdict(self.line) if self.line else {}
        spec = self.status.record.spec
        return as_dict(self.status, self.state) | {
            # their folders are this machine's
            "inputs": [Path(name).name for name in spec.inputs],
            "output": Path(spec.output).name,
            "error": self.error,
            "priority": self.status.record.priority,
            "retried": live.get("retried", 0),
            "output_tps": live.get("output_tps", 0.0),
            "planned_tps": live.get("planned_tps", 0.0),
            "eta_s": live.get("eta_s"),
        }


class JobsSeen:
    """Looks at the jobs of one state folder, beside the controller that works on them."""

    def __init__(self, desk: FrontDesk, state: StateDir) -> None:
        self._desk = desk
        self._state = state

    def look(self) -> dict[int, JobSeen]:
        """Every job by its id, oldest first."""
        # The snapshot comes first: a job that ends in between is then seen as over, never as given up.
        snapshot = self._desk.ask(lambda service: service.snapshot())
        if not self._state.has_ledger():
            return {}
        with Ledger.read(self._state) as ledger:
            return {job.id: job for job in seen(ledger.jobs(), snapshot.jobs)}


def seen(statuses: Iterable[JobStatus], lines: Iterable[JobLine]) -> list[JobSeen]:
    """The jobs of the ledger with the controller's lines of them."""
    by_id = {line.id: line for line in lines}
    return [_seen(status, by_id.get(status.record.id)) for status in statuses]


def _seen(status: JobStatus, line: JobLine | None) -> JobSeen:
    record = status.record
    if line is None:
        state = INTERRUPTED if record.state is JobState.RUNNING else record.state.value
        return JobSeen(status=status, state=state, error=record.problem)
    # The ledger may say already how it ended.
    ended = record.state is not JobState.RUNNING and line.state not in OVER
    state = record.state.value if ended else line.state
    return JobSeen(status=status, state=state, error=line.error or record.problem, line=line)
