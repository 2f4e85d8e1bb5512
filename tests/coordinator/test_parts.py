"""Long documents over a real tokenizer: every row fits, and the levels end."""

import random
from datetime import date

import pytest

from coordinator.intake.chat import ChatTemplate
from coordinator.intake.fields import Settings
from coordinator.intake.options import IntakeOptions
from coordinator.intake.parts import Parts
from coordinator.intake.prompts import Prompts
from coordinator.intake.rows import RowMaker
from coordinator.intake.tokens import Tokens
from fleet.errors import RequestError
from fleet.job import KeyHeader, Sampling, Task
from tests.bare_model import TEMPLATE, bare_model

WORDS = ("senate", "met.", "the", "people\n\n", "of", "states;", "caf\u00e9", "\u4f60\u597d", "\U0001f600", "1998")


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Tokens:
    return Tokens(bare_model(tmp_path_factory.mktemp("model")))


def make(tokens: Tokens, context: int, max_tokens: int | None = None) -> Parts:
    options = IntakeOptions(task=Task.SUMMARIZE, model="m", max_tokens=max_tokens)
    chat = ChatTemplate(TEMPLATE, special_tokens={}, today=date(2026, 1, 1), where="test")
    header = KeyHeader(model_hash="h", tokenizer_hash="t", sampling=Sampling(), max_tokens=0)
    return Parts(tokens, Prompts(options, chat, tokens.vocabulary), RowMaker(options, header, context=context))


def draw(rng: random.Random, words: int) -> str:
    return " ".join(rng.choice(WORDS) for _ in range(words))


@pytest.mark.parametrize("seed", range(25))
def test_levels_shrink_to_one_row_whatever_the_summaries_are(seed: int, tokens: Tokens) -> None:
    rng = random.Random(seed)
    context = rng.choice([400, 512, 1024, 2048])
    parts = make(tokens, context, rng.choice([None, 60, context // 2]))
    rows = parts.cut(draw(rng, rng.randrange(1000, 4000)), Settings())
    while True:
        assert all(row.length + row.max_tokens <= context for row in rows), f"seed {seed}"
        if len(rows) == 1:
            break
        # an answer has at most max_tokens tokens, but nothing says that its text makes as few again
        texts = [draw(rng, rng.randrange(1, 2 * row.max_tokens)) for row in rows]
        following = parts.reduce(texts)
        assert len(following) < len(rows), f"seed {seed}: a level must be smaller than the one before"
        rows = following


def test_summaries_that_fit_one_prompt_are_one_row(tokens: Tokens) -> None:
    (row,) = make(tokens, 2048).reduce(["One.", "Two.", "Three."])
    assert row.max_tokens == 160


def test_empty_summaries_are_left_out(tokens: Tokens) -> None:
    parts = make(tokens, 2048)
    assert parts.reduce(["One.", " ", "", "Two."]) == parts.reduce(["One.", "Two."])
    assert len(parts.reduce(["", ""])) == 1


def test_a_context_too_small_for_two_summaries_is_an_error(tokens: Tokens) -> None:
    with pytest.raises(RequestError, match="too small to summarize it in parts"):
        make(tokens, 130).cut("word " * 500, Settings())


def test_a_document_of_megabytes_is_cut_piece_by_piece(tokens: Tokens) -> None:
    rows = make(tokens, 2048).cut("the senate met. " * 50_000, Settings())
    assert len(rows) > 50
    assert all(row.length + row.max_tokens <= 2048 for row in rows)
