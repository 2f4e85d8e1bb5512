"""Cuts and groups: pure, and proven over random texts."""

import random
import re
from itertools import pairwise

import pytest

from coordinator.intake.documents import cut, group, head

_FAMILY = "\U0001f469\u200d\U0001f467"
WORDS = (
    "a",
    "senate",
    "met.",
    "Whereas",
    "people,",
    "states;",
    "x" * 40,
    "\u4f60\u597d\u3002",
    "e\u0301",
    "\U0001f469\u200d\U0001f467",
)
GAPS = (" ", " ", " ", "\n", "\n\n", "")


def draw_text(rng: random.Random, words: int) -> str:
    return "".join(rng.choice(WORDS) + rng.choice(GAPS) for _ in range(words))


def token_starts(text: str) -> list[int]:
    """A stand-in for a tokenizer: words with their blank before, long ones in pieces, glyphs several tokens each."""
    starts = []
    for match in re.finditer(r"\s?[^\s]{1,7}|\s", text):
        starts += [match.start()] * (3 if ord(match.group()[-1]) > 0x7F else 1)
    return starts


@pytest.mark.parametrize("seed", range(40))
def test_any_text_is_cut_into_the_fewest_parts_that_fit_and_join_to_it(seed: int) -> None:
    rng = random.Random(seed)
    text = draw_text(rng, rng.randrange(2, 2000))
    starts = token_starts(text)
    room = rng.randrange(8, 300)
    parts = cut(text, starts, room)
    assert "".join(parts) == text, f"seed {seed}"
    assert all(parts)
    free = min(32, room // 8)
    assert len(parts) <= max(2, -(-len(starts) // (room - free)))
    borders = [0]
    for part in parts:
        borders.append(borders[-1] + len(part))
    for low, high in pairwise(borders):
        inside = sum(low <= start < high for start in starts)
        assert inside <= room + 3, f"seed {seed}: a glyph may add its tokens to the next part, no more"


def test_a_cut_prefers_paragraphs_to_sentences_to_words() -> None:
    for better, worse in (("\n\n", ". "), (". ", " ")):
        text = "word " * 100 + "end" + better + "word " * 10 + "end" + worse + "word " * 100
        starts = token_starts(text)
        first, second = cut(text, starts, 160)
        assert first + second == text
        assert first.rstrip().endswith("end" + better.strip())
        assert second.count(worse.strip() or "end") == 1


def test_parts_are_nearly_equal() -> None:
    text = "word " * 1000
    sizes = [len(part) for part in cut(text, token_starts(text), 300)]
    assert len(sizes) == 4
    assert max(sizes) - min(sizes) < 60


def test_no_cut_goes_through_a_glyph() -> None:
    family = "\U0001f469\u200d\U0001f469\u200d\U0001f467"
    text = family * 50
    parts = cut(text, list(range(len(text))), 40)
    assert len(parts) > 5
    assert all(part.startswith("\U0001f469") and part.endswith("\U0001f467") for part in parts)


@pytest.mark.parametrize("seed", range(40))
def test_grouping_keeps_order_fits_and_at_least_halves(seed: int) -> None:
    rng = random.Random(seed)
    room = rng.randrange(4, 200)
    counts = [rng.randrange(1, room // 2 + 1) for _ in range(rng.randrange(1, 300))]
    groups = group(counts, room)
    assert [index for start, end in groups for index in range(start, end)] == list(range(len(counts))), f"seed {seed}"
    assert all(sum(counts[start:end]) <= room for start, end in groups)
    assert len(groups) <= -(-len(counts) // 2)


def test_groups_are_nearly_equal() -> None:
    assert group([10] * 9, 80) == [(0, 5), (5, 9)]


def test_a_head_ends_with_a_word() -> None:
    text = "one two three four"
    assert head(text, [0, 3, 7, 13], 4) == text
    assert head(text, [0, 3, 7, 13], 2) == "one two"
