"""What the controller does about crashes: suspects to trials, verdicts to the ledger, caps to the worker."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence

from coordinator.assignments import Assignments
from coordinator.dispatch import Dispatch
from coordinator.ledger import Ledger
from coordinator.member import Member
from coordinator.records import OpenRow
from coordinator.suspects import GUILTY_AT, Suspects
from fleet.errors import EngineError
from fleet.messages import Crashed, SetCap

log = logging.getLogger(__name__)

#: Rows quarantined while no row finished, after which the engine is to blame and not the rows ...
HOPELESS_AT = 3
#: ... or, in a job that has answers already, and perhaps nothing but such rows left.
HOPELESS_LATER_AT = 20


class Faults:
    """Suspects of all crashes and the rows parked because of them."""

    def __init__(self, ledger: Ledger, assignments: Assignments, dispatch: Dispatch, *, hopeful: bool) -> None:
        """`hopeful`: the job has answers, so that an engine has worked once."""
        self._hopeless_at = HOPELESS_LATER_AT if hopeful else HOPELESS_AT
        self._ledger = ledger
        self._assignments = assignments
        self._dispatch = dispatch
        self._suspects = Suspects()
        #: suspects that are in no shard
        self._parked: dict[int, OpenRow] = {}
        #: rows finished in this run
        self._finished = 0
        #: rows quarantined in this run
        self.quarantined = 0
        #: engine and worker crashes in this run
        self.crashes = 0

    def __len__(self) -> int:
        """Suspects that wait for a trial to be sent."""
        return len(self._parked)

    def crashed(self, member: Member, crash: Crashed) -> None:
        """Takes the rows of a crashed batch out of their shards and makes suspects of them."""
        self.crashes += 1
        rows = self._assignments.release(crash.rows)
        log.warning("%s: engine crashed (%s) with %d rows in the batch", member.id, crash.reason, len(crash.rows))
        if not rows:
            self._unexplained(member)
            return
        ids = [row.id for row in rows]
        self._parked.update({row.id: row for row in rows})
        alone = len(crash.rows) == 1
        crashes = self._ledger.crashed(ids, alone)
        if alone and crashes[0] >= GUILTY_AT:
            self._quarantine(member, ids[0], crash.reason)
        else:
            self._suspects.crashed(ids, crash.latest)

    def finished(self, member: Member, row: int) -> None:
        """A row has its result: it is no suspect any more."""
        self._finished += 1
        self._parked.pop(row, None)
        self._clear(member, row)

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
        """Rows to send as exclusive shards now, one sampling group each."""
        while (trial := self._suspects.take()) is not None:
            groups: dict[int, list[OpenRow]] = {}
            for id in trial.rows:
                if (row := self._parked.pop(id, None)) is not None:
                    groups.setdefault(row.sampling, []).append(row)
            yield from groups.values()

    def _quarantine(self, member: Member, row: int, reason: str) -> None:
        self.quarantined += 1
        self._suspects.guilty(row)
        self._parked.pop(row, None)
        self._ledger.quarantine(row, f"crashed the engine alone {GUILTY_AT} times: {reason}")
        self._assignments.recorded(row)
        log.warning("row %d is quarantined: %s", row, reason)
        if self.quarantined >= self._hopeless_at and not self._finished:
            raise EngineError(
                f"the engine crashed on each of {self.quarantined} prompts and finished none "
                f"({reason}): the model or MLX on this machine is broken, see engine.log"
            )
        self._clear(member, row)

    def _clear(self, member: Member, row: int) -> None:
        case = self._suspects.cleared(row)
        if case is not None and not case.explained:
            self._unexplained(member)

    def _unexplained(self, member: Member) -> None:
        cap = member.unexplained_crash()
        if cap is not None:
            log.warning("%s: batch halved to %d after crashes that no row explains", member.id, cap)
            self._dispatch.control(member.id, SetCap(rows=cap))
