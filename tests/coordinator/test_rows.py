"""Tokens to rows: limits, sampling and keys."""

from typing import Any

import pytest

from coordinator.intake.fields import Settings
from coordinator.intake.options import IntakeOptions
from coordinator.intake.rows import RowMaker
from coordinator.intake.tokens import pack
from fleet.errors import RequestError
from fleet.job import KeyHeader, KeyMaker, Sampling, Task

HEADER = KeyHeader(model_hash="h", tokenizer_hash="t", sampling=Sampling(), max_tokens=0)
PROMPT = pack(range(60))


def maker(**options: Any) -> RowMaker:
    asked: dict[str, Any] = {"task": Task.GENERATE, "model": "m", **options}
    return RowMaker(IntakeOptions(**asked), HEADER, context=100)


def test_a_default_is_clamped_to_what_the_prompt_leaves() -> None:
    assert maker().row(PROMPT, Settings()).max_tokens == 40
    assert maker(task=Task.SUMMARIZE).row(PROMPT[:4], Settings()).max_tokens == 99


@pytest.mark.parametrize(("options", "settings"), [({"max_tokens": 41}, Settings()), ({}, Settings(max_tokens=41))])
def test_a_given_figure_is_never_clamped(options: dict[str, Any], settings: Settings) -> None:
    with pytest.raises(RequestError, match="the prompt has 60 tokens and max_tokens is 41, expected at most 100"):
        maker(**options).row(PROMPT, settings)


def test_a_prompt_that_fills_the_context_leaves_no_answer() -> None:
    with pytest.raises(RequestError, match="the prompt has 100 tokens, expected fewer than 100"):
        maker().row(pack(range(100)), Settings())


def test_a_greedy_row_ignores_what_only_sampling_needs() -> None:
    rows = maker(top_p=0.5, seed=4)
    assert rows.sampling(Settings()) == rows.sampling(Settings(temperature=0.0, seed=9)) == Sampling()


def test_penalties_change_greedy_rows_too_and_their_keys() -> None:
    asked = Settings(presence_penalty=0.5, frequency_penalty=-0.5, repetition_penalty=1.2)
    found = maker().sampling(asked)
    assert found == Sampling(presence_penalty=0.5, frequency_penalty=-0.5, repetition_penalty=1.2)
    assert maker().row(PROMPT, asked).key != maker().row(PROMPT, Settings()).key
    warm = maker(temperature=0.7, top_p=0.9).sampling(asked)
    assert (warm.temperature, warm.top_p, warm.presence_penalty) == (0.7, 0.9, 0.5)


def test_penalties_that_change_nothing_make_no_group_of_their_own() -> None:
    neutral = Settings(presence_penalty=0.0, frequency_penalty=0.0, repetition_penalty=1.0)
    assert maker().row(PROMPT, neutral).key == maker().row(PROMPT, Settings()).key


def test_a_greedy_key_is_the_one_any_maker_of_keys_gives() -> None:
    row = maker(max_tokens=7).row(PROMPT, Settings())
    header = KeyHeader(model_hash="h", tokenizer_hash="t", sampling=Sampling(), max_tokens=7)
    assert row.key == KeyMaker(header).key(PROMPT)


def test_many_different_settings_are_not_remembered_without_end() -> None:
    rows = maker(temperature=1.0)
    keys = {rows.row(PROMPT, Settings(seed=seed)).key for seed in range(9000)}
    assert len(keys) == 9000
    assert len(rows._samplings) <= 4096
    assert len(rows._keys) <= 4096
