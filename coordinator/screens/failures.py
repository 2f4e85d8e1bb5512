"""Failures grouped by kind: a bounded number of kinds, each with how many there are and its first one."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from coordinator.records import Source

#: Kinds of failure listed for a person; the errors file has them all.
SHOWN_KINDS = 8
#: Kinds of failure told apart; a backlog that is broken in more ways is broken as a whole.
MAX_KINDS = 200
OTHER = "other reasons"

#: What differs between two failures of one kind: quoted words and figures, alone or listed with commas between.
_WORD = r"(?:'[^']*'|\"[^\"]*\"|\d[\d.,]*\d|\d)"
_PARTICULAR = re.compile(rf"{_WORD}(?:, {_WORD})*(?:, \.\.\.)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Requests that failed for one kind of reason."""

    count: int
    #: reason of the first one, in full
    reason: str
    #: custom_id of the first one, None where the line was too broken to have one
    example: str | None
    #: where the first one came from
    source: str


class Failures:
    """Counts failures by kind, in bounded memory."""

    def __init__(self) -> None:
        self._kinds: dict[str, Failure] = {}

    def add(self, reason: str, custom_id: str | None, source: Source) -> None:
        """Counts one more."""
        name = _PARTICULAR.sub("#", reason)
        if name not in self._kinds and len(self._kinds) >= MAX_KINDS:
            name, reason = OTHER, OTHER
        known = self._kinds.get(name)
        if known is None:
            self._kinds[name] = Failure(count=1, reason=reason, example=custom_id, source=str(source))
        else:
            self._kinds[name] = replace(known, count=known.count + 1)

    def kinds(self) -> tuple[Failure, ...]:
        """The kinds, most frequent first."""
        return tuple(sorted(self._kinds.values(), key=lambda kind: -kind.count))


def lines(failures: Sequence[Failure]) -> list[str]:
    """The most frequent kinds for a person, one a line."""
    shown = [
        f"  {kind.count:>6,} x {kind.reason} (first: {kind.example or 'no id'}, {kind.source})"
        for kind in failures[:SHOWN_KINDS]
    ]
    rest = failures[SHOWN_KINDS:]
    if rest:
        kinds = "kind" if len(rest) == 1 else "kinds"
        shown.append(f"  {sum(kind.count for kind in rest):>6,} x {len(rest)} more {kinds} of reason")
    return shown
