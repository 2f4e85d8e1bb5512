"""What the controller does about crashes: suspects to trials, verdicts to the ledger, caps to the worker."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from coordinator.broker.dispatch import Dispatch
from coordinator.control.member import HALVE_AT, Member
from coordinator.ledger.ledger import Ledger
from coordinator.records import OpenRow
from coordinator.scheduling.assignments import Assignments
from coordinator.scheduling.suspects import GUILTY_AT, Suspects
from fleet.errors import EngineError
from fleet.messages import Crashed, SetCap

log = logging.getLogger(__name__)

#: Rows of a job quarantined while none of it finished, after which the engine is to blame and not the rows ...
HOPELESS_AT = 3
#: ... or, in a job that has answers already, and perhaps nothing but such rows left.
HOPELESS_LATER_AT = 20
#: Workers that vanished with a row in their batch before it is a suspect: one may have been asleep or unplugged.
SUSPECT_AT = 2


class HopelessJobError(EngineError):
    """Raised when an engine crashes on prompt after prompt of a job and finishes none."""

    def __init__(self, job: int, text: str) -> None:
        super().__init__(text)
        self.job = job


class Faults:
    """Suspects of all crashes and the rows parked because of them."""

    def __init__(
        self, ledger: Ledger, assignments: Assignments, dispatch: Dispatch, members: Mapping[str, Member]
    ) -> None:
        self._members = members
        self._ledger = ledger
        self._assignments = assignments
        self._dispatch = dispatch
        self._suspects = Suspects()
        #: suspects that are in no shard
        self._parked: dict[int, OpenRow] = {}
        #: by job: rows finished since the coordinator started, and rows quarantined
        self._finished: Counter[int] = Counter()
        self._quarantined: Counter[int] = Counter()
        #: engine and worker crashes since then
        self.crashes = 0

    @property
    def quarantined(self) -> int:
        """Rows quarantined since the coordinator started."""
        return self._quarantined.total()

    def __len__(self) -> int:
        """Suspects that wait for a trial to be sent."""
        return len(self._parked)

    def taken(self, row: int) -> bool:
        """Whether the row is in a shard, or waits for a trial."""
        return row in self._parked or self._assignments.shard_of(row) is not None

    def crashed(self, member: Member, crash: Crashed) -> None:
        """Takes the rows of a crashed batch out of their shards and makes suspects of them. Raises HopelessJobError
        when that was one too many of its job."""
        self.crashes += 1
        rows = self._assignments.release(crash.rows, member.id)
        log.warning("%s: engine crashed (%s) with %d rows in the batch", member.id, crash.reason, len(crash.rows))
        if not rows:
            self._unexplained(member)
            return
        ids = [row.id for row in rows]
        self._parked.update({row.id: row for row in rows})
        alone = len(crash.rows) == 1
        crashes = self._ledger.crashed(ids, alone)
        if alone and crashes[0] >= GUILTY_AT:
            self._quarantine(rows[0], crash.reason)
        else:
            self._suspects.crashed(ids, crash.latest, member.id)

    def vanished(self, member: Member, running: Sequence[int]) -> None:
        """A whole worker went silent with these rows in its batch: on trial, or for the second time, they are
        suspects, as a prompt may take a whole machine along; a first time proves nothing."""
        flights = [(row, self._assignments.shard_of(row)) for row in running]
        tried = [row for row, flight in flights if flight is not None and flight.exclusive]
        if tried:
            reason = "the worker vanished"
            self.crashed(member, Crashed(rows=tuple(tried), latest=(), reason=reason, cap=0))
            return
        counts = self._ledger.vanished(running)
        seen = [row for row in running if counts.get(row, 0) >= SUSPECT_AT]
        if seen:
            rows = self._assignments.release(seen, member.id)
            self._parked.update({row.id: row for row in rows})
            self._ledger.crashed([row.id for row in rows], alone=False)
            if rows:
                self._suspects.crashed([row.id for row in rows], (), member.id)

    def finished(self, row: int, job: int) -> None:
        """A row has its result: it is no suspect any more."""
        self._finished[job] += 1
        self._parked.pop(row, None)
        self._clear(row)

    def keep_suspects(self, rows: Iterable[OpenRow]) -> list[OpenRow]:
        """Of rows that came back without a result, keeps the suspects for a new trial; the others."""
        others = []
        again = []
        for row in rows:
            if row.id in self._suspects:
                self._parked[row.id] = row
                again.append(row.id)
            else:
                others.append(row)
        self._suspects.put_back(again)
        return others

    def trials(self) -> Iterator[Sequence[OpenRow]]:
        """Rows to send as exclusive shards now, of one job and sampling group each."""
        while (trial := self._suspects.take()) is not None:
            groups: dict[tuple[int, int], list[OpenRow]] = {}
            for id in trial.rows:
                if (row := self._parked.pop(id, None)) is not None:
                    groups.setdefault((row.job, row.sampling), []).append(row)
            yield from groups.values()

    def crashes_on(self, rows: Sequence[OpenRow], member: Member) -> int:
        """In how many crashes of a worker's engine these suspects were."""
        return self._suspects.crashes_on([row.id for row in rows], member.id)

    def doubts(self, member: Member) -> bool:
        """Whether a worker's engine crashed so often lately that the rows may not be to blame: what it gets meanwhile
        would become suspect too."""
        return self._suspects.cases_of(member.id) >= HALVE_AT

    def forget(self, job: int) -> list[int]:
        """The job is given up: its suspects, on trial or waiting for one, are none any more. Those that wait."""
        waiting = [row.id for row in self._parked.values() if row.job == job]
        trials = [flight for flight in self._assignments.flights.values() if flight.job == job and flight.exclusive]
        for row in waiting:
            del self._parked[row]
        for row in (*waiting, *(row for flight in trials for row in flight.rows)):
            self._suspects.cleared(row)
        return waiting

    def _quarantine(self, row: OpenRow, reason: str) -> None:
        self._quarantined[row.job] += 1
        self._suspects.guilty(row.id)
        self._parked.pop(row.id, None)
        self._ledger.quarantine(row.id, f"crashed the engine alone {GUILTY_AT} times: {reason}")
        self._assignments.recorded(row.id)
        log.warning("row %d is quarantined: %s", row.id, reason)
        self._clear(row.id)
        if not self._finished[row.job] and self._quarantined[row.job] >= self._hopeless_at(row.job):
            raise HopelessJobError(
                row.job,
                f"the engine crashed on each of {self._quarantined[row.job]} prompts and finished none "
                f"({reason}): the model or MLX on this machine is broken, see engine.log",
            )

    def _hopeless_at(self, job: int) -> int:
        return HOPELESS_LATER_AT if self._ledger.counts(job).done else HOPELESS_AT

    def _clear(self, row: int) -> None:
        case = self._suspects.cleared(row)
        if case is not None and not case.explained and case.worker in self._members:
            self._unexplained(self._members[case.worker])

    def _unexplained(self, member: Member) -> None:
        cap = member.unexplained_crash()
        if cap is not None:
            log.warning("%s: batch halved to %d after crashes that no row explains", member.id, cap)
            self._dispatch.control(member.id, SetCap(rows=cap))
