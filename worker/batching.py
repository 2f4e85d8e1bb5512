"""Which waiting rows join the batch, and when. Pure: no MLX, no clock."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from fleet.job import Sampling

#: Slots that must be free before rows join, as a share of the cap: each joining copies the whole batch's KV and
#: costs a forward of its own, while a free slot idles.
COHORT_SHARE = 1 / 8
#: Size of a packed token.
TOKEN_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """Rows that may share a batch; another lane's rows start when the batch is empty. Lower `order` runs first."""

    #: 0 exclusive, 1 with a cap of its own, 2 everything else
    order: int
    #: the shard's id when exclusive, else empty
    shard: str = ""
    #: rows together at most, 0 for the engine's cap
    cap: int = 0


ORDINARY = Lane(order=2)


def lane_of(shard: str, *, exclusive: bool, cap: int) -> Lane:
    """The lane of a shard's rows."""
    if exclusive:
        return Lane(order=0, shard=shard, cap=cap)
    return Lane(order=1, cap=cap) if cap else ORDINARY


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A row in the engine."""

    id: int
    #: names the computation, whatever salt the row's key has
    key: bytes
    #: prompt after the prefix, never empty
    tokens: list[int] = field(repr=False)
    max_tokens: int
    sampling: Sampling = field(repr=False)
    lane: Lane
    #: what it is charged with, see `memory.charged_tokens`
    charged_tokens: int
    #: first tokens that other rows have too, uint32 little endian, may be empty
    prefix: bytes = field(default=b"", repr=False)

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the whole prompt."""
        return len(self.prefix) // TOKEN_BYTES + len(self.tokens)

    @property
    def total_tokens(self) -> int:
        """Tokens of prompt and longest answer."""
        return self.prompt_tokens + self.max_tokens


class Pool:
    """Rows waiting for the batch, longest first within a lane."""

    def __init__(self) -> None:
        self._lanes: dict[Lane, list[Row]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._lanes.values()))

    def put(self, row: Row) -> None:
        """Adds a row."""
        insort(self._lanes.setdefault(row.lane, []), row, key=_rank)

    def lengths(self) -> list[int]:
        """Prompt and longest answer of each row that waits, in tokens."""
        return [row.total_tokens for rows in self._lanes.values() for row in rows]

    def first(self, running: Sequence[Row]) -> Row | None:
        """The row that is next to join the `running` ones, None when none may."""
        lane = self.lane(running)
        return None if lane is None else self._lanes[lane][0]

    def forget(self, ids: Iterable[int]) -> None:
        """Drops these rows where they wait."""
        gone = set(ids)
        kept = {lane: [row for row in rows if row.id not in gone] for lane, rows in self._lanes.items()}
        self._lanes = {lane: rows for lane, rows in kept.items() if rows}

    def due(self, running: Sequence[Row], *, cap: int) -> bool:
        """Whether enough slots are free that letting rows join is worth its cost."""
        lane = self.lane(running)
        return lane is not None and cohort_due(len(self._lanes[lane]), len(running), cap=_own_cap(lane, cap))

    def take(self, running: Sequence[Row], *, cap: int, budget_tokens: int, at_most: int) -> list[Row]:
        """Removes and returns up to `at_most` rows that fit beside the `running` ones, longest first."""
        lane = self.lane(running)
        if lane is None:
            return []
        rows = self._lanes[lane]
        waiting = [row.charged_tokens for row in rows[:at_most]]
        charged = [row.charged_tokens for row in running]
        count = admit(waiting, charged, cap=_own_cap(lane, cap), budget_tokens=budget_tokens)
        taken, self._lanes[lane] = rows[:count], rows[count:]
        if not self._lanes[lane]:
            del self._lanes[lane]
        return taken

    def lane(self, running: Sequence[Row]) -> Lane | None:
        """The lane whose rows may join now; None while a batch of another lane has to end first."""
        first = min(self._lanes, key=lambda lane: (lane.order, lane.shard, lane.cap), default=None)
        if not running or first == running[0].lane:
            return first
        present = running[0].lane
        urgent = first is not None and first.order < present.order
        return present if present in self._lanes and not urgent else None

    def validate(self) -> None:
        """Raises AssertionError when an invariant is broken; tests call it."""
        for lane, rows in self._lanes.items():
            assert rows, "an empty lane is kept"
            assert all(row.lane == lane for row in rows), "a row stands in another lane"
            assert rows == sorted(rows, key=_rank), "a lane is not longest first"


def _own_cap(lane: Lane, cap: int) -> int:
    return min(cap, lane.cap) if lane.cap else cap


def _rank(row: Row) -> int:
    return -(row.prompt_tokens + row.max_tokens)


def admit(waiting: Sequence[int], running: Sequence[int], *, cap: int, budget_tokens: int) -> int:
    """How many of `waiting`, from the front, join the `running` rows; all given by their charged tokens.

    A batch is one array: each row takes as much as the longest. A row alone always joins (it was checked to fit);
    the first that does not fit waits for room, and those behind it wait too, or it would never run.
    """
    longest = max(running, default=0)
    rows = len(running)
    for count, charged in enumerate(waiting):
        longest = max(longest, charged)
        rows += 1
        if rows > cap or (rows > 1 and rows * longest > budget_tokens):
            return count
    return len(waiting)


def cohort_due(waiting: int, running: int, *, cap: int) -> bool:
    """Whether so many slots are free (or as many as rows wait) that joining is worth its cost."""
    free = cap - running
    return free > 0 and (running == 0 or free >= min(waiting, max(1, int(cap * COHORT_SHARE))))
