"""Where long texts are cut: all of the text, pieces that fit and overlap, borders that people would choose."""

from itertools import pairwise
from random import Random

import pytest

from coordinator.intake.windows import windows


def word_starts(text: str) -> list[int]:
    """A token for each word."""
    return [at for at in range(len(text)) if not text[at].isspace() and (at == 0 or text[at - 1].isspace())]


def words(count: int) -> str:
    return " ".join(f"w{number}" for number in range(count))


def tokens_in(starts: list[int], start: int, end: int) -> int:
    return sum(start <= at < end for at in starts)


@pytest.mark.parametrize("room", [16, 31, 254, 510])
@pytest.mark.parametrize("count", [17, 255, 256, 300, 509, 4_000])
def test_pieces_fit_the_room_overlap_and_cover_the_text(room: int, count: int) -> None:
    text = words(count)
    starts = word_starts(text)
    found = windows(text, starts, room)
    assert (found[0][0], found[-1][1]) == (0, len(text))
    assert all(1 <= tokens_in(starts, *piece) <= room for piece in found)
    for (_, end), (start, _) in pairwise(found):
        assert room // 16 - 1 <= tokens_in(starts, start, end) <= room // 4


def test_a_text_that_fits_is_one_piece_without_its_blanks() -> None:
    assert windows("  one two\n", [2, 6], 16) == [(2, 9)]


def test_pieces_are_nearly_equal_and_few() -> None:
    text = words(300)
    sizes = [tokens_in(word_starts(text), *piece) for piece in windows(text, word_starts(text), 254)]
    assert len(sizes) == 2
    assert max(sizes) - min(sizes) < 254 // 4


def test_pieces_end_with_a_sentence_where_one_ends_nearby() -> None:
    text = " ".join(f"This is the sentence number {number}, and it ends." for number in range(60))
    found = windows(text, word_starts(text), 100)
    assert len(found) > 5
    assert all(text[start:end].startswith("This") and text[start:end].endswith("ends.") for start, end in found)


def test_a_glyph_of_many_tokens_is_not_cut_and_ends() -> None:
    family = "\U0001f469\u200d\U0001f469\u200d\U0001f467"
    text = family * 60
    starts = [at for at in range(len(text)) for _ in range(3)]  # three tokens a code point
    found = windows(text, starts, 254)
    assert found[-1][1] == len(text)
    assert all(text[start - 1] != "\u200d" and text[start] != "\u200d" for start, _ in found[1:])


def test_a_text_that_is_one_endless_character_comes_to_an_end() -> None:
    assert windows("x", [0] * 500, 16)[-1] == (0, 1)


def test_pieces_of_blanks_alone_are_left_out() -> None:
    text = "a" + " " * 400 + "b"
    found = windows(text, list(range(len(text))), 32)
    assert [text[start:end] for start, end in found] == ["a", "b"]


@pytest.mark.parametrize("seed", range(20))
def test_every_character_that_is_not_blank_is_in_some_piece(seed: int) -> None:
    random = Random(seed)
    text = "".join(random.choice("ab .\n\u200d\u00e9") for _ in range(random.randint(1, 3_000)))
    starts = sorted(random.choices(range(len(text)), k=random.randint(1, 2 * len(text))))
    starts[0] = 0
    covered = set()
    for start, end in windows(text, starts, random.randint(16, 300)):
        covered |= set(range(start, end))
    missing = [at for at in range(len(text)) if at not in covered and not text[at].isspace()]
    assert missing == [], f"seed {seed}"
