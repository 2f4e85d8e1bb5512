"""Tables that fit the width there is: columns shrink, then go by rank, and an ellipsis tells of both. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len, set_cell_size

#: Between two columns.
GAP = "  "
#: Stands where something was left out.
MORE = "…"


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column; every one of a table has as many cells."""

    title: str
    cells: tuple[str, ...]
    #: without room the column of the highest rank goes first; one of rank 0 stays
    rank: int = 0
    #: figures stand to the right
    right: bool = False
    #: narrowest it may be cut to; 0 for never
    least: int = 0

    @property
    def width(self) -> int:
        """Terminal cells that its widest cell takes."""
        return max(map(cell_len, (self.title, *self.cells)))

    @property
    def least_width(self) -> int:
        """Terminal cells that it needs at least."""
        return min(self.width, max(self.least, cell_len(self.title))) if self.least else self.width


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """The columns that have room, as wide as they are drawn."""

    columns: tuple[Column, ...]
    widths: tuple[int, ...]
    #: whether some had no room
    cut: bool

    @property
    def head(self) -> tuple[str, ...]:
        """The titles, padded; where columns had no room, an ellipsis behind them."""
        titles = tuple(
            _padded(column.title, width, column.right) for column, width in zip(self.columns, self.widths, strict=True)
        )
        return (*titles, MORE) if self.cut else titles

    def row(self, number: int) -> tuple[str, ...]:
        """The cells of a row, padded or cut to their columns' widths."""
        return tuple(
            _padded(column.cells[number], width, column.right)
            for column, width in zip(self.columns, self.widths, strict=True)
        )


def fit(columns: Sequence[Column], width: int) -> Table:
    """The table that `width` terminal cells have room for; a column without a word in it takes none."""
    kept = [column for column in columns if any(column.cells)]
    cut = False
    while _total([column.least_width for column in kept], cut) > width:
        rank = max((column.rank for column in kept), default=0)
        if rank == 0:
            break
        kept = [column for column in kept if column.rank != rank]
        cut = True
    widths = [column.least_width for column in kept]
    spare = width - _total(widths, cut)
    for at, column in enumerate(kept):
        more = max(min(column.width - widths[at], spare), 0)
        widths[at] += more
        spare -= more
    return Table(columns=tuple(kept), widths=tuple(widths), cut=cut)


def shortened(text: str, width: int) -> str:
    """`text` in at most `width` terminal cells, with an ellipsis where it was longer."""
    if cell_len(text) <= width:
        return text
    return set_cell_size(text, max(width - cell_len(MORE), 0)).rstrip() + MORE


def printable(text: str) -> str:
    """`text` without what moves a terminal's cursor or colours: names and notes come from other machines."""
    return "".join(char if char.isprintable() else " " for char in text)


def _total(widths: Sequence[int], cut: bool) -> int:
    return sum(widths) + len(GAP) * (len(widths) - 1) + (len(GAP) + cell_len(MORE) if cut else 0)


def _padded(text: str, width: int, right: bool) -> str:
    text = shortened(text, width)
    space = " " * (width - cell_len(text))
    return space + text if right else text + space
