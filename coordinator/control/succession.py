"""Takes over what an earlier coordinator's workers still have: their beats and reports say which rows that is."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from coordinator.control.member import Member, Presence
from coordinator.control.roster import Roster
from coordinator.records import OpenRow
from coordinator.scheduling.assignments import Flight
from coordinator.scheduling.legacy import Held, Legacy
from coordinator.scheduling.picture import weigh
from fleet.messages import Crashed, Finished, Message, Returned

log = logging.getLogger(__name__)


class Succession:
    """Rows of the jobs at work that were sent before this coordinator came. Owned by the controller's thread."""

    def __init__(self, roster: Roster, sent: Sequence[tuple[int, str, str]]) -> None:
        """`sent` is what the ledger knows of open rows, see `Ledger.sent_rows`."""
        self._roster = roster
        self._legacy = Legacy(sent)
        for row, worker, _ in sent:
            roster.assignments.remember(row, worker)

    def __len__(self) -> int:
        """Rows of which some worker must still tell."""
        return len(self._legacy)

    def claim(self, job: int, rows: Iterable[OpenRow]) -> tuple[list[OpenRow], list[OpenRow]]:
        """Rows for a job's pool, and rows that are another job's: what a worker may have is kept until it tells."""
        return self._legacy.claim(job, rows)

    def look(self) -> list[OpenRow]:
        """Settles what can be by now; rows of workers that are gone, to be given back. What only waited in a queue is
        in the pool again."""
        lost = []
        for worker in self._legacy.workers() if len(self._legacy) else ():
            member = self._roster.members.get(worker)
            if member is None or member.presence is Presence.LOST:
                lost += self._legacy.heard(worker, ())[1]
            elif member.beat is not None:
                held, free = self._legacy.heard(worker, frozenset(member.beat.shards))
                self._adopt(member, held)
                self._roster.return_unbegun(free)
        return lost

    def told(self, member: Member, messages: Iterable[Message]) -> None:
        """A worker reports on rows: it had them, whether it was heard or not."""
        for message in messages:
            if isinstance(message, Finished):
                self._adopt(member, self._legacy.told(member.id, [row.id for row in message.rows]))
            elif isinstance(message, Crashed | Returned):
                self._adopt(member, self._legacy.told(member.id, message.rows))

    def drop(self, job: int) -> list[int]:
        """A job is given up: its rows are nobody's, until another job claims them."""
        return self._legacy.drop(job)

    def unclaimed(self, member: Member) -> list[int]:
        """Rows that a member has, as far as it was heard, and no job at work has claimed."""
        return self._legacy.unclaimed(member.id, member.beat.shards) if member.beat is not None else []

    def forget(self, member: Member, rows: Iterable[int]) -> None:
        """Rows that were called off there."""
        self._legacy.forget(member.id, rows)

    def _adopt(self, member: Member, held: Held) -> None:
        """A shard is one job's; rows of it that were kept for others are left to that one."""
        assignments, runs = self._roster.assignments, self._roster.runs
        for shard, rows in held.items():
            known = assignments.flights.get(shard)
            run = runs[known.job if known is not None else rows[0].job]
            for row in rows:
                if row.job != run.job.id:
                    runs[row.job].leave([row])
            mine = {row.id: row.of_job(run.job.id) for row in rows}
            flight = Flight(id=shard, worker=member.id, job=run.job.id, rows=mine)
            weigh(flight, run.lengths, run.computed_share)
            assignments.adopt(flight)
            log.info("%s still has %d rows of shard %s", member.id, len(rows), shard)
