"""What a worker has to tell: kept until the coordinator took it, in order, and told again to a broker that forgot."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace

from fleet.messages import Crashed, Finished, Returned, RowResult

#: Results in one stream entry, and the text and vectors in it, at most.
MAX_ROWS = 256
MAX_TEXT_BYTES = 1 << 20
#: Reports kept at most before the worker takes no more work.
FULL_ROWS = 16_384
FULL_TEXT_BYTES = 64 << 20

Report = RowResult | Crashed | Returned
Letter = Finished | Crashed | Returned


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """A letter in the results stream, perhaps not read yet."""

    epoch: str
    #: (milliseconds, sequence) of the stream entry
    entry: tuple[int, int]
    reports: tuple[Report, ...]


class Outbox:
    """Reports in order: taken by the coordinator, sent, unsent. Not thread-safe by itself."""

    def __init__(self, name: str = "") -> None:
        #: makes the ids of reports that must count once unique over all workers ever; empty gives them none
        self._name = name
        self._unsent: deque[Report] = deque()
        self._sent: deque[Sent] = deque()
        self._text_bytes = 0
        #: reports ever put in
        self.put_count = 0

    def put(self, reports: Iterable[Report]) -> None:
        """Adds reports at the end."""
        for report in reports:
            self.put_count += 1
            if self._name and not isinstance(report, RowResult):
                report = replace(report, id=f"{self._name}-{self.put_count}")
            self._unsent.append(report)
            self._text_bytes += _text_bytes(report)

    @property
    def unsent(self) -> int:
        """Reports not in the stream yet."""
        return len(self._unsent)

    @property
    def sent_count(self) -> int:
        """Of the reports ever put in, how many are in the stream or were taken from it: a prefix."""
        return self.put_count - len(self._unsent)

    @property
    def taken_count(self) -> int:
        """Of the reports ever put in, how many the coordinator has: a prefix."""
        return self.sent_count - sum(len(sent.reports) for sent in self._sent)

    @property
    def full(self) -> bool:
        """True when so much is kept that no more work should be taken."""
        return self.put_count - self.taken_count >= FULL_ROWS or self._text_bytes >= FULL_TEXT_BYTES

    @property
    def urgent(self) -> bool:
        """True when a letter should go at once: it would be a full one, or gives rows back."""
        return len(self._unsent) >= MAX_ROWS or any(not isinstance(report, RowResult) for report in self._unsent)

    def draft(self) -> Letter | None:
        """The next letter, None when all is sent; it stays unsent until `sent`."""
        if not self._unsent:
            return None
        first = self._unsent[0]
        return first if not isinstance(first, RowResult) else Finished(rows=self._results())

    def sent(self, letter: Letter, epoch: str, entry_id: str) -> None:
        """The `draft` went into the stream of the broker of `epoch`."""
        count = len(letter.rows) if isinstance(letter, Finished) else 1
        reports = tuple(self._unsent.popleft() for _ in range(count))
        self._sent.append(Sent(epoch=epoch, entry=parse(entry_id), reports=reports))

    def taken(self, epoch: str, first: str | None) -> None:
        """The oldest entry in the stream now is `first`, None for an empty stream: what is older was taken, if it
        was sent to this very broker; what was sent to one that is gone is to be sent again."""
        if any(sent.epoch != epoch for sent in self._sent):
            # All of them, even what the new broker has: the counts speak of prefixes, and each counts once there.
            again = [report for sent in self._sent for report in sent.reports]
            self._sent.clear()
            self._unsent.extendleft(reversed(again))
        oldest = parse(first) if first is not None else None
        while self._sent and (oldest is None or self._sent[0].entry < oldest):
            self._text_bytes -= sum(map(_text_bytes, self._sent.popleft().reports))

    def _results(self) -> tuple[RowResult, ...]:
        rows: list[RowResult] = []
        text_bytes = 0
        for report in self._unsent:
            if not isinstance(report, RowResult) or len(rows) == MAX_ROWS:
                break
            text_bytes += _text_bytes(report)
            if rows and text_bytes > MAX_TEXT_BYTES:
                break
            rows.append(report)
        return tuple(rows)


def parse(entry_id: str) -> tuple[int, int]:
    """A stream entry's id as numbers, which compare as the server orders them."""
    milliseconds, _, sequence = entry_id.partition("-")
    return int(milliseconds), int(sequence or 0)


def _text_bytes(report: Report) -> int:
    return len(report.text.encode()) + len(report.vector) if isinstance(report, RowResult) else 0
