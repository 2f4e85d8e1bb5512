"""What was moved from worker to worker in one turn, in sentences. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from coordinator.screens.wording import counted


class Moves:
    """Counts by giver and taker."""

    def __init__(self) -> None:
        self._stolen: Counter[tuple[str, str]] = Counter()
        self._copied: Counter[tuple[str, str]] = Counter()

    def stolen(self, source: str, target: str, rows: int) -> None:
        """Rows that waited were taken back and sent elsewhere."""
        self._stolen[source, target] += rows

    def copied(self, source: str, target: str) -> None:
        """A row was sent to a second worker."""
        self._copied[source, target] += 1

    def told(self, names: Mapping[str, str]) -> Iterator[str]:
        """A sentence for each giver and taker; `names` by worker id."""
        for (source, target), rows in self._stolen.items():
            yield f"{counted(rows, 'row')} moved from {names[source]} to {names[target]}"
        for (source, target), rows in self._copied.items():
            yield f"{counted(rows, 'last row')} of {names[source]} also sent to {names[target]}"
