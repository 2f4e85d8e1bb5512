"""Rows in, results out."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from fleet.job import Finish, Sampling
from fleet.messages import RowResult
from tests.driver import packed
from tests.models import EOS, train_tokenizer
from worker.batching import ORDINARY, Row
from worker.decoder import Decoder
from worker.generation.prefill import Prefix
from worker.generation.rows import Counters, GenRow, Step
from worker.prefixes import PrefixStore
from worker.text import Text
from worker.thinking import TAGS, Tags

TOKENIZER: Any = train_tokenizer()


class Script:
    """A generation whose tokens are written down."""

    def __init__(self, script: dict[int, list[int]]) -> None:
        self.counters = Counters()
        self.inside: dict[int, GenRow] = {}
        self._script = script
        self._at: dict[int, int] = {}

    def insert(self, rows: Sequence[GenRow]) -> None:
        self.inside.update({row.id: row for row in rows})

    def step(self) -> list[Step]:
        steps: list[Step] = []
        for id, row in list(self.inside.items()):
            at = self._at[id] = self._at.get(id, -1) + 1
            token = self._script[id][at]
            length = Finish.LENGTH if at + 1 == row.max_tokens else None
            finish = Finish.STOP if token == EOS else length
            steps.append((id, token, finish))
            if finish is not None:
                del self.inside[id]
        return steps

    def remove(self, ids: Iterable[int]) -> None:
        for id in ids:
            del self.inside[id]


def tokens(text: str) -> list[int]:
    ids: list[int] = TOKENIZER.encode(text).ids
    return ids


def row(id: int, sampling: Sampling | None = None, max_tokens: int = 50) -> Row:
    return Row(
        id=id,
        key=bytes(16),
        tokens=[5, 6, 7],
        max_tokens=max_tokens,
        sampling=sampling or Sampling(),
        lane=ORDINARY,
        charged_tokens=256,
    )


def decode(
    script: list[int], sampling: Sampling | None = None, max_tokens: int = 50, thinking: Tags | None = None
) -> RowResult:
    generation = Script({1: script})
    decoder = Decoder(generation, Text(TOKENIZER), frozenset([EOS]), thinking=thinking)
    decoder.insert([row(1, sampling, max_tokens)])
    while True:
        ended = decoder.step(8)
        if ended:
            assert not generation.inside
            assert decoder.rows == []
            return ended[0]


def test_a_prefix_is_handed_on_computed_and_counted_once() -> None:
    generation = Script({id: [*tokens("yes"), EOS] for id in (1, 2, 3)})
    computed = Prefix(tokens=(8, 9), caches=())
    prefixes = PrefixStore(lambda _: computed, limit_bytes=100, kv_bytes=1)
    decoder = Decoder(generation, Text(TOKENIZER), frozenset([EOS]), prefixes)
    generation.counters.prefix_tokens = 2
    shared = packed([8, 9])
    decoder.insert([replace(row(1), prefix=shared), replace(row(2), prefix=shared), row(3)])
    assert [(r.prefix, r.tokens) for r in generation.inside.values()] == [
        (computed, [5, 6, 7]),
        (computed, [5, 6, 7]),
        (None, [5, 6, 7]),
    ]
    assert decoder.figures.shared_tokens == 2
    results = [result for _ in range(3) for result in decoder.step(4)]
    assert {result.id: result.input_tokens for result in results} == {1: 5, 2: 5, 3: 3}


def test_where_rows_cannot_begin_with_a_prefix_prompts_are_whole() -> None:
    generation = Script({1: [EOS]})
    prefixes = PrefixStore(lambda _: None, limit_bytes=100, kv_bytes=1)
    decoder = Decoder(generation, Text(TOKENIZER), frozenset([EOS]), prefixes)
    decoder.insert([replace(row(1), prefix=packed([8, 9]))])
    assert (generation.inside[1].prefix, generation.inside[1].tokens) == (None, [8, 9, 5, 6, 7])
    assert decoder.figures.shared_tokens == 0
    assert decoder.step(1)[0].input_tokens == 5


def test_an_end_token_ends_a_row_and_is_not_part_of_it() -> None:
    result = decode([*tokens("The answer"), EOS])
    assert result == RowResult(
        id=1, text="The answer", finish=Finish.STOP, input_tokens=3, output_tokens=len(tokens("The answer"))
    )


def test_max_tokens_ends_a_row_and_a_broken_character_is_left_off() -> None:
    script = tokens("is 🙂")
    result = decode(script, max_tokens=len(script) - 1)
    assert (result.text, result.finish) == ("is ", Finish.LENGTH)
    assert result.output_tokens == len(script) - 1


def test_a_row_that_ends_at_once_says_that_it_is_empty() -> None:
    result = decode([EOS])
    assert (result.text, result.finish, result.output_tokens) == ("", Finish.EMPTY, 0)


@pytest.mark.parametrize("stop", ["wer is", "\n\n", "n"])
def test_a_stop_string_ends_a_row_and_is_cut_off_with_what_follows(stop: str) -> None:
    whole = "The answer is\n\nyes"
    result = decode([*tokens(whole), EOS], Sampling(stop=(stop,)))
    assert (result.text, result.finish) == (whole[: whole.index(stop)], Finish.STOP)


def test_a_stop_string_that_is_a_special_token_ends_a_row() -> None:
    result = decode([*tokens("yes"), 1, *tokens("no")], Sampling(stop=("<|im_start|>",)))
    assert (result.text, result.finish) == ("yes", Finish.STOP)


def test_a_stop_string_completed_by_the_last_allowed_token_is_a_stop() -> None:
    script = tokens("yes no")
    result = decode(script, Sampling(stop=("no",)), max_tokens=len(script))
    assert (result.text, result.finish) == ("yes ", Finish.STOP)


THINK = "<think>\nThe house says no, the senate yes.</think>\n\nThe answer is yes"


def test_thinking_is_told_apart_from_the_answer_and_its_tokens_count() -> None:
    script = tokens(THINK)
    assert decode([*script, EOS], thinking=TAGS[0]) == RowResult(
        id=1,
        text="The answer is yes",
        finish=Finish.STOP,
        input_tokens=3,
        output_tokens=len(script),
        reasoning="The house says no, the senate yes.",
    )
    assert decode([*script, EOS]).text == THINK


def test_stop_strings_are_not_looked_for_in_the_thinking() -> None:
    result = decode([*tokens(THINK), EOS], Sampling(stop=("yes",)), thinking=TAGS[0])
    assert (result.text, result.finish) == ("The answer is ", Finish.STOP)
    assert result.reasoning == "The house says no, the senate yes."
    result = decode([*tokens("<tag> no yes"), EOS], Sampling(stop=("<", "yes")), thinking=TAGS[0])
    assert (result.text, result.finish, result.output_tokens) == ("", Finish.STOP, len(tokens("<ta")))


def test_max_tokens_reached_inside_the_thinking_is_told_as_such() -> None:
    result = decode(tokens(THINK), max_tokens=12, thinking=TAGS[0])
    assert (result.text, result.finish, result.output_tokens) == ("", Finish.THINKING, 12)
    assert THINK.removeprefix("<think>\n").startswith(result.reasoning)
    assert result.reasoning
    late = decode(tokens(THINK), max_tokens=len(tokens(THINK)) - 1, thinking=TAGS[0])
    assert (late.finish, late.text[:10]) == (Finish.LENGTH, "The answer")


def test_a_model_that_thinks_and_then_says_nothing_has_an_empty_answer() -> None:
    for text in ("<think>no", "<think>no</think>"):
        result = decode([*tokens(text), EOS], thinking=TAGS[0])
        assert (result.text, result.finish, result.reasoning) == ("", Finish.EMPTY, "no")


def test_a_label_is_no_thinking() -> None:
    assert decode([10, 11, 99], LABELS, thinking=TAGS[0]).text == "nope"


LABELS = Sampling(labels=("no", "nope"), label_tokens=((10,), (10, 11)))


def test_a_label_that_cannot_go_on_ends_a_row_without_an_end_token() -> None:
    result = decode([10, 11, 99], LABELS)
    assert (result.text, result.finish, result.output_tokens) == ("nope", Finish.STOP, 2)


def test_a_label_that_could_go_on_ends_at_the_end_token() -> None:
    assert decode([10, EOS], LABELS).text == "no"


def test_a_label_is_never_cut_by_max_tokens() -> None:
    assert decode([10, 11], LABELS, max_tokens=1).text == "nope"


def test_rows_of_unlike_sampling_share_a_batch_and_the_figures_count_them() -> None:
    generation = Script({1: [*tokens("yes"), EOS], 2: [10, 11], 3: tokens("one sentence in the house")})
    decoder = Decoder(generation, Text(TOKENIZER), frozenset([EOS]))
    decoder.insert([row(1), row(2, LABELS), row(3, Sampling(stop=("sentence",)))])
    assert [id for id, _ in decoder.running] == [1, 2, 3]
    results = {result.id: result.text for _ in range(8) for result in decoder.step(cap=4)}
    assert results == {1: "yes", 2: "nope", 3: "one "}
    figures = decoder.figures
    assert figures.output_tokens > 4
    assert figures.step_cap % 4 == 0


def test_removed_rows_give_no_result() -> None:
    generation = Script({1: tokens("a b c d e"), 2: [10, EOS]})
    decoder = Decoder(generation, Text(TOKENIZER), frozenset([EOS]))
    decoder.insert([row(1), row(2)])
    decoder.step(2)
    decoder.remove([1, 77])
    assert decoder.running == ((2, 1),)
    assert list(generation.inside) == [2]
    assert [result.id for result in decoder.step(2)] == [2]
