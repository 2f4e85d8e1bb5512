"""Long documents: where to cut a text into parts, and which summaries go together. Pure."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from itertools import pairwise

#: Tokens of a part kept free so that its end can move to a better border.
_SLACK_TOKENS = 32
#: A border may lie this far from the even one, as a share of a part.
_WINDOW = 0.25
_SENTENCE_ENDS = frozenset(".!?;:\u2026\u3002\uff01\uff1f\uff1b")
_JOINERS = frozenset("\u200d\ufe0e\ufe0f")


def cut(text: str, starts: Sequence[int], room: int) -> list[str]:
    """`text` as the fewest nearly equal parts (two at least) of at most `room` tokens; joined they are `text`.

    `starts` holds the character where each token starts, ascending; `room` >= 1.
    """
    slack = min(_SLACK_TOKENS, room // 8)
    left = max(min(2, len(starts)), -(-len(starts) // (room - slack)))
    parts = []
    first, begin = 0, 0
    while left > 1:
        first = _best_border(text, starts, first, left, room)
        left -= 1
        end = starts[first]
        if end > begin:  # several tokens can make one character, which is never cut
            parts.append(text[begin:end])
            begin = end
    if begin < len(text):
        parts.append(text[begin:])
    return parts


def _best_border(text: str, starts: Sequence[int], first: int, left: int, room: int) -> int:
    """The token that starts the next part: near the even share, within `room`, at the best kind of border."""
    even = first + (len(starts) - first) / left
    window = _WINDOW * (even - first)
    low = max(first + 1, len(starts) - (left - 1) * room, round(even - window))
    high = min(first + room, len(starts) - 1, round(even + window))
    low = min(low, high)
    return max(range(low, high + 1), key=lambda token: (rank(text, starts[token]), -abs(token - even)))


def rank(text: str, at: int) -> int:
    """How good a cut before character `at` is: 4 paragraph, 3 line, 2 sentence, 1 word, 0 any, -1 inside a glyph."""
    if at <= 0 or at >= len(text):
        return -1
    before, after = text[at - 1], text[at]
    if before in _JOINERS or after in _JOINERS or unicodedata.combining(after):
        return -1
    blank_at = at - 1 if before.isspace() else at
    if not text[blank_at].isspace():
        return 2 if before in _SENTENCE_ENDS and ord(before) > 0x7F else 0
    around = text[max(0, at - 2) : at + 2]
    if "\n" in around:
        return 4 if around.count("\n") > 1 else 3
    return 2 if blank_at > 0 and text[blank_at - 1] in _SENTENCE_ENDS else 1


def group(counts: Sequence[int], room: int) -> list[tuple[int, int]]:
    """Neighbours put together, as ranges of few and nearly equal groups of at most `room` tokens each.

    Any two neighbours must fit `room` together: then there are at most half as many groups as counts, rounded up.
    """
    assert all(a + b <= room for a, b in pairwise(counts)), "two neighbours do not fit"
    fewest = len(_packed(counts, room))
    low, high = max(counts, default=0), room
    while low < high:  # the smallest room that needs no more groups makes them nearly equal
        middle = (low + high) // 2
        if len(_packed(counts, middle)) <= fewest:
            high = middle
        else:
            low = middle + 1
    return _packed(counts, high)


def _packed(counts: Sequence[int], room: int) -> list[tuple[int, int]]:
    groups: list[tuple[int, int]] = []
    start, total = 0, 0
    for index, count in enumerate(counts):
        if index > start and total + count > room:
            groups.append((start, index))
            start, total = index, 0
        total += count
    if counts:
        groups.append((start, len(counts)))
    return groups


def head(text: str, starts: Sequence[int], tokens: int) -> str:
    """The first `tokens` tokens of `text`, back to a word's end where there is one."""
    if len(starts) <= tokens:
        return text
    low = max(1, tokens - _SLACK_TOKENS)
    return text[: starts[max(range(low, tokens + 1), key=lambda token: (rank(text, starts[token]) > 0, token))]]
