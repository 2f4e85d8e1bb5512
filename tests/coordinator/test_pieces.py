"""Texts to embed on their way to rows: special tokens, texts over the model's length, prompts, dimensions, keys."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from coordinator.intake.intake import Intake, IntakeOptions
from coordinator.intake.tokens import unpack
from coordinator.records import NewRequest, Place
from fleet.encoder_folder import read_encoder
from fleet.errors import FleetError, UsageError
from fleet.job import Embedding, Task
from tests.bare_model import train_tokenizer as bare_tokenizer
from tests.embedders import CLS, DIMENSION, MAX_SEQ_TOKENS, SEP, bare_embedder, letters

TOKENIZER = letters()
#: 30 letters: with [CLS] and [SEP] exactly what the model takes.
FULL = "abcdefghij" * 3
LONG = "one two. " * 30
Take = Callable[..., list[NewRequest]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bare_embedder(tmp_path_factory.mktemp("model"))


@pytest.fixture
def take(model: Path, tmp_path: Path) -> Take:
    def requests(*values: Any, folder: Path = model, **options: Any) -> list[NewRequest]:
        lines = [value if isinstance(value, dict) else {"text": value} for value in values]
        file = tmp_path / "in.jsonl"
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))
        asked = IntakeOptions(**{"task": Task.EMBED, "model": "m", **options})
        intake = Intake([str(file)], asked, folder, "hash")
        return [request for chunk in intake.chunks() for request in chunk]

    return requests


def batch(value: Any, **body: Any) -> dict[str, Any]:
    """An OpenAI batch line for embeddings."""
    return {"custom_id": "a", "method": "POST", "url": "/v1/embeddings", "body": {"input": value, **body}}


def tokens(request: NewRequest, row: int = 0) -> list[int]:
    return unpack(request.rows[row].tokens)


def encoded(text: str) -> list[int]:
    ids: list[int] = TOKENIZER.encode(text).ids
    return ids


# -- whole texts -----------------------------------------------------------------------------------


def test_a_text_has_the_models_special_tokens_and_no_padding(take: Take, model: Path) -> None:
    (request,) = take("ab")
    assert tokens(request) == encoded("ab")
    assert (tokens(request)[0], tokens(request)[-1], len(tokens(request))) == (CLS, SEP, 4)
    assert (request.rows[0].max_tokens, request.rows[0].place) == (0, None)
    assert request.rows[0].sampling.embedding == Embedding(folder=read_encoder(model).hash)


def test_a_text_of_exactly_the_models_length_is_whole(take: Take) -> None:
    for long in ("error", "truncate", "chunk"):
        (request,) = take(FULL, long=long)
        assert (request.error, len(tokens(request)), request.rows[0].place) == (None, MAX_SEQ_TOKENS, None)


@pytest.mark.parametrize("text", ["", " \n", "\u200b", "\x00"])
def test_a_text_with_nothing_in_it_is_an_error(take: Take, text: str) -> None:
    (request,) = take(text)
    assert "nothing to embed" in (request.error or "")


def test_other_fields_are_carried_whatever_they_are_called(take: Take) -> None:
    (request,) = take({"id": 7, "text": "ab", "temperature": "hot", "n": 3})
    assert (request.error, request.custom_id) == (None, "7")
    assert json.loads(request.extra) == {"temperature": "hot", "n": 3}


# -- long texts ------------------------------------------------------------------------------------


def test_one_token_too_many_is_an_error_when_asked(take: Take) -> None:
    (request,) = take(FULL + "x", long="error")
    assert request.error == (
        "the text has 33 tokens, expected at most 32, the model's max_seq_length; "
        "--long truncate or --long chunk takes it"
    )


def test_a_text_is_truncated_as_the_tokenizer_does_and_says_so(take: Take) -> None:
    (request,) = take(FULL + "xyz", long="truncate")
    cutting = letters()
    cutting.enable_truncation(MAX_SEQ_TOKENS)
    assert tokens(request) == cutting.encode(FULL + "xyz").ids
    assert request.rows[0].place == Place(text=0, start=0, end=30, cut_tokens=35)


def test_by_default_a_long_text_becomes_pieces_each_the_text_it_names(take: Take) -> None:
    (request,) = take(LONG)
    assert len(request.rows) > 3
    end = 0
    for row in request.rows:
        assert row.place is not None
        assert unpack(row.tokens) == encoded(LONG[row.place.start : row.place.end])
        assert row.length <= MAX_SEQ_TOKENS
        assert row.place.start <= end  # they overlap, or touch
        end = row.place.end
    assert end == len(LONG.rstrip())


def test_a_piece_is_the_same_computation_as_the_text_alone(take: Take) -> None:
    (long,) = take(LONG)
    place = long.rows[1].place
    assert place is not None
    (alone,) = take(LONG[place.start : place.end])
    assert alone.rows[0].key == long.rows[1].key


@pytest.mark.parametrize("bytewise", [False, True])
def test_places_are_characters_of_the_text_as_it_was_given(take: Take, tmp_path: Path, bytewise: bool) -> None:
    folder = bare_embedder(tmp_path / "m")
    if bytewise:  # an emoji is several tokens then
        bare_tokenizer().save(str(folder / "tokenizer.json"))
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    text = " \t\n " + "caf\u00e9 \U0001f600 one.  \U0001f469\u200d\U0001f467 " * 20 + "end "
    (request,) = take(text, folder=folder)
    covered: set[int] = set()
    for row in request.rows:
        assert row.place is not None
        start, end = row.place.start, row.place.end
        assert unpack(row.tokens) == tokenizer.encode(text[start:end]).ids
        covered |= set(range(start, end))
    assert min(covered) == text.index("c")
    assert max(covered) == text.rindex("d")
    assert not any(not text[at].isspace() for at in set(range(len(text))) - covered)


@pytest.mark.parametrize("long", ["truncate", "chunk"])
def test_a_text_too_long_to_tokenise_whole_is_cut_as_well(take: Take, long: str) -> None:
    text = "word " * 120_000
    (request,) = take(text, long=long)
    assert request.error is None
    assert max(row.length for row in request.rows) <= MAX_SEQ_TOKENS
    first, last = request.rows[0].place, request.rows[-1].place
    assert first is not None
    assert last is not None
    if long == "chunk":
        assert (first.start, last.end) == (0, len(text) - 1)
    else:
        assert abs(first.cut_tokens - 480_000) < 480_000 * 0.02


def test_texts_whose_tokens_are_more_when_cut_still_fit(take: Take, tmp_path: Path) -> None:
    folder = bare_embedder(tmp_path / "m")
    # a word over 100 letters is one [UNK]; cut somewhere it is many tokens, and pieces need less room
    text = ("a" * 101 + " ") * 40
    (request,) = take(text, folder=folder)
    assert request.error is None or "cannot be cut" in request.error
    assert all(row.length <= MAX_SEQ_TOKENS for row in request.rows)


def test_a_long_text_of_blanks_alone_is_nothing_also_where_blanks_are_tokens(take: Take, tmp_path: Path) -> None:
    folder = bare_embedder(tmp_path / "m")
    bare_tokenizer().save(str(folder / "tokenizer.json"))
    (request,) = take(batch(" \n" * 200), folder=folder, long="chunk")
    assert request.error == "the text has no tokens in this model: nothing to embed"


# -- OpenAI batch lines ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "rows"),
    [
        ("ab", [encoded("ab")]),
        (["ab", "cd"], [encoded("ab"), encoded("cd")]),
        ([5, 6, 7], [[5, 6, 7]]),
        ([[5], [6, 7]], [[5], [6, 7]]),
    ],
)
def test_input_is_a_text_texts_token_ids_or_lists_of_them(take: Take, value: Any, rows: list[list[int]]) -> None:
    (request,) = take(batch(value))
    assert request.error is None
    assert [unpack(row.tokens) for row in request.rows] == rows


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        (batch(""), "input is empty: nothing to embed"),
        (batch(["a", ""]), "input is empty: nothing to embed"),
        (batch(["a", " "]), "the text has no tokens in this model: nothing to embed"),
        (batch([]), "input: found [], expected a text, a list of texts, a list of token ids, or a list of such lists"),
        (batch([1, 900]), "input: found token id 900, expected 0 to"),
        (batch([5] * 33), "the token ids are 33 tokens, expected at most 32"),
        (batch(FULL + "x"), "the text has 33 tokens, expected at most 32"),
        (batch("a", encoding_format="hex"), 'encoding_format: found "hex", expected float or base64'),
        (batch("a", dimensions=0), "dimensions: found 0, expected a positive integer"),
        (batch("a", dimensions=4), "dimensions: found 4, expected 8, since the model declares no shorter vectors"),
        ({**batch("a"), "body": {}}, "body.input is missing"),
        ({**batch("a"), "url": "/v1/completions"}, "expected /v1/embeddings for embed"),
    ],
)
def test_a_line_that_cannot_be_embedded_says_why(take: Take, line: dict[str, Any], sentence: str) -> None:
    (request,) = take(line)
    assert sentence in (request.error or "")


def test_a_long_text_in_a_line_becomes_pieces_only_when_asked(take: Take) -> None:
    (request,) = take(batch(["ab", LONG]), long="chunk")
    assert request.error is None
    places = [row.place for row in request.rows if row.place is not None]
    assert len(places) == len(request.rows)
    assert places[0] == Place(text=0, start=0, end=2)
    assert {place.text for place in places[1:]} == {1}


def test_how_a_line_wants_its_vectors_written_is_kept(take: Take) -> None:
    plain, packed = take(
        batch("a", encoding_format="float"), {**batch("a", encoding_format="base64"), "custom_id": "b"}
    )
    assert (plain.extra, json.loads(packed.extra)) == ("", {"encoding_format": "base64"})
    assert plain.rows[0].key == packed.rows[0].key


# -- prompts, dimensions, keys ---------------------------------------------------------------------


def test_a_prompt_stands_before_every_text_and_every_piece(take: Take, tmp_path: Path) -> None:
    folder = bare_embedder(tmp_path / "m", prompts={"query": "q: ", "passage": "p: "})
    short, long = take("ab", LONG, folder=folder, prompt_name="query")
    assert tokens(short) == encoded("q: ab")
    for row in long.rows:
        assert row.place is not None
        assert unpack(row.tokens) == encoded("q: " + LONG[row.place.start : row.place.end])


def test_a_prompt_around_nothing_is_nothing(take: Take, tmp_path: Path) -> None:
    folder = bare_embedder(tmp_path / "m", prompts={"query": "q: "})
    (request,) = take("\u200b", folder=folder, prompt_name="query")
    assert "nothing to embed" in (request.error or "")


def test_a_truncated_text_with_a_prompt_tells_where_in_the_text_it_ends(take: Take, tmp_path: Path) -> None:
    folder = bare_embedder(tmp_path / "m", prompts={"query": "qq "})
    (request,) = take(FULL, folder=folder, prompt_name="query", long="truncate")
    assert request.rows[0].place == Place(text=0, start=0, end=28, cut_tokens=34)


def test_shorter_vectors_where_the_model_declares_them(take: Take, tmp_path: Path) -> None:
    folder = bare_embedder(tmp_path / "m", config={"matryoshka_dimensions": [2, 4, 8]})
    flat, short, full = take(
        "ab", batch("ab", dimensions=2), {**batch("ab", dimensions=8), "custom_id": "c"}, folder=folder
    )
    here = read_encoder(folder).hash
    assert [r.rows[0].sampling.embedding for r in (flat, short, full)] == [
        Embedding(folder=here),
        Embedding(dimensions=2, folder=here),
        Embedding(folder=here),
    ]
    assert flat.rows[0].key == full.rows[0].key != short.rows[0].key
    (asked,) = take("ab", folder=folder, dimensions=4)
    assert asked.rows[0].sampling.embedding == Embedding(dimensions=4, folder=here)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"dimensions": 4}, f"dimensions: found 4, expected {DIMENSION}, since the model declares no shorter vectors"),
        ({"prompt_name": "query"}, "option prompt: found 'query', and the prompts of .* are: none"),
        ({"long": "cut"}, "option long: found 'cut', expected error or truncate or chunk"),
        ({"dtype": "int8"}, "option dtype: found 'int8', expected float32 or float16"),
        ({"temperature": 0.5}, "option temperature does not go with embed"),
        ({"stop": ("x",)}, "option stop does not go with embed"),
        ({"prompt_template": "{text}"}, "option prompt_template does not go with embed"),
        ({"task": Task.GENERATE, "dtype": "float16"}, "option dtype goes with embed only"),
        ({"task": Task.GENERATE, "long": "chunk"}, "option long goes with embed only"),
    ],
)
def test_options_that_cannot_be_followed_are_refused_before_any_work(
    take: Take, options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(UsageError, match=sentence):
        take("ab", **options)


def test_a_model_too_short_for_its_prompt_is_refused(take: Take, tmp_path: Path) -> None:
    folder = bare_embedder(tmp_path / "m", prompts={"query": "a much too long one: "})
    with pytest.raises(FleetError, match="too few for a prompt and a text"):
        take("ab", folder=folder, prompt_name="query")


def test_everything_that_changes_a_vector_changes_its_key_and_nothing_else_does(take: Take, tmp_path: Path) -> None:
    usual = take("ab")[0].rows[0].key
    assert take({"id": "other", "text": "ab", "page": 1}, long="error")[0].rows[0].key == usual
    assert take("ab", dtype="float16")[0].rows[0].key != usual
    folder = bare_embedder(tmp_path / "m")
    assert take("ab", folder=folder)[0].rows[0].key == usual
    pooling = {"word_embedding_dimension": DIMENSION, "pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    assert take("ab", folder=folder)[0].rows[0].key != usual


def test_equal_texts_are_one_computation(take: Take) -> None:
    first, second = take("ab", {"id": "x", "text": "ab"})
    assert first.rows[0].key == second.rows[0].key
