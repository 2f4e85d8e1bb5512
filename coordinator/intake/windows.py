"""Where a text over a model's length is cut into pieces that overlap, each to be embedded on its own. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from coordinator.intake.documents import rank

#: Tokens that a piece shares with the one before, as a share of the room; a border may lie half of that off.
OVERLAP = 1 / 8


def windows(text: str, starts: Sequence[int], room: int) -> list[tuple[int, int]]:
    """Ranges of characters that cover `text`: few and nearly equal pieces of at most `room` tokens, each sharing about
    an eighth of the room with the one before. Blanks at their ends are left out, and so are pieces of blanks alone.

    `starts` holds the character where each token starts, ascending; `room` >= 16.
    """
    overlap = int(room * OVERLAP)
    slack = overlap // 2
    ranges: list[tuple[int, int]] = []
    first, begin = 0, 0
    while (left := len(starts) - first) > room:
        pieces = -(-(left - overlap) // (room - overlap - slack))
        even = min(-(-(left + (pieces - 1) * overlap) // pieces) + slack, room)
        end = _border(text, starts, first + even - 2 * slack, first + even)
        ranges.append((begin, starts[end]))
        # behind the last start in any case, or a text of one endless glyph would be cut there for ever
        again = _border(text, starts, max(end - overlap - slack, first + 1), max(end - overlap, first + 1))
        first, begin = again, starts[again]
    ranges.append((begin, len(text)))
    trimmed = (_trimmed(text, start, end) for start, end in ranges)
    return [(start, end) for start, end in trimmed if start < end]


def _border(text: str, starts: Sequence[int], low: int, high: int) -> int:
    """The token from `low` to `high` before which a cut is best, the last of the best ones."""
    return max(range(low, high + 1), key=lambda token: (rank(text, starts[token]), token))


def _trimmed(text: str, start: int, end: int) -> tuple[int, int]:
    while start < end and text[start].isspace():
        start += 1
    while start < end and text[end - 1].isspace():
        end -= 1
    return start, end
