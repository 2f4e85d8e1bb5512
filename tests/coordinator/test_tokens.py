"""Text to token ids: nothing cut, nothing added."""

from itertools import pairwise
from pathlib import Path

import pytest
from tokenizers import processors

from coordinator.intake.tokens import PIECE_CHARS, WHOLE_CHARS, Tokens, pack, pieces, unpack
from fleet.errors import ModelError
from tests.bare_model import bare_model, train_tokenizer


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Tokens:
    return Tokens(bare_model(tmp_path_factory.mktemp("model")))


def test_packed_ids_are_uint32_little_endian() -> None:
    assert pack([1, 0x01020304]) == b"\x01\x00\x00\x00\x04\x03\x02\x01"
    assert unpack(pack([1, 49_151])) == [1, 49_151]


def test_a_truncation_or_padding_set_in_the_file_is_not_obeyed(tmp_path: Path) -> None:
    folder = bare_model(tmp_path / "m")
    cutting = train_tokenizer()
    cutting.enable_truncation(4)
    cutting.enable_padding(length=16)
    cutting.save(str(folder / "tokenizer.json"))
    short, long = Tokens(folder).encode(["a", "the senate met and the house met"])
    assert len(short) == 4
    assert len(long) > 16


def test_special_tokens_are_added_to_raw_text_only(tmp_path: Path) -> None:
    folder = bare_model(tmp_path / "m")
    with_bos = train_tokenizer()
    with_bos.post_processor = processors.TemplateProcessing(
        single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", 0)]
    )
    with_bos.save(str(folder / "tokenizer.json"))
    tokens = Tokens(folder)
    plain, raw = tokens.encode(["met"])[0], tokens.encode(["met"], special=True)[0]
    assert raw == pack([0]) + plain


def test_pieces_cover_a_long_text_without_a_gap() -> None:
    for text in ("ab " * WHOLE_CHARS, "a" * (WHOLE_CHARS + 1)):
        ranges = list(pieces(text))
        assert ranges[0][0] == 0
        assert ranges[-1][1] == len(text)
        assert all(before[1] == after[0] for before, after in pairwise(ranges))
        assert all(0 < end - start <= PIECE_CHARS for start, end in ranges)
    assert list(pieces("short")) == [(0, 5)]
    assert list(pieces("")) == []


def test_a_count_in_pieces_is_as_good_as_exact(tokens: Tokens) -> None:
    text = "the senate met and the house met. " * 20_000
    exact = len(tokens.encode([text])[0]) // 4
    assert abs(tokens.count(text) - exact) <= len(list(pieces(text)))
    assert abs(len(tokens.starts(text)) - exact) <= len(list(pieces(text)))


def test_starts_are_the_characters_where_tokens_begin(tokens: Tokens) -> None:
    starts = tokens.starts("met \U0001f600 met").tolist()
    assert starts == sorted(starts)
    assert len(starts) == len(tokens.encode(["met \U0001f600 met"])[0]) // 4
    assert set(starts) <= set(range(9))


def test_a_tokenizer_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    folder = bare_model(tmp_path / "m")
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelError, match=r"tokenizer\.json"):
        Tokens(folder)


def test_a_file_is_loaded_once_while_it_stays_as_it_was(tmp_path: Path) -> None:
    folder = bare_model(tmp_path / "m")
    first, again = Tokens(folder), Tokens(folder)
    assert first._tokenizer is again._tokenizer
    before = first.encode(["the senate met"])
    larger = train_tokenizer()
    larger.add_tokens(["the senate"])
    larger.save(str(folder / "tokenizer.json"))
    assert Tokens(folder).encode(["the senate met"]) != before
    assert first.encode(["the senate met"]) == before
