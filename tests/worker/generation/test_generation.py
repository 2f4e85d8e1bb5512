"""Rows decoded together get the tokens they get alone, whatever joins, ends or moves beside them."""

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.generate import generate_step

from fleet.job import Finish
from tests.tiny import CONFIGS, VOCABULARY, tiny
from worker.generation.attention import StepAttention
from worker.generation.batch import MOVE_STEPS, Ahead, Generation
from worker.generation.rows import GenRow, Step

pytestmark = pytest.mark.mlx

#: Prompts of every kind: one token, under and over the sliding windows (24), equal ones, over a prefill chunk (64).
LENGTHS = (1, 5, 17, 40, 60, 33, 33, 90, 2, 50)
NEW = (20, 30, 8, 40, 25, 12, 12, 30, 50, 3)
DRAW = random.Random(1)
PROMPTS = [[DRAW.randrange(VOCABULARY) for _ in range(length)] for length in LENGTHS]


@pytest.fixture(scope="module", params=list(CONFIGS))
def model(request: pytest.FixtureRequest) -> Any:
    return tiny(request.param)


@pytest.fixture(scope="module")
def alone(model: Any) -> list[list[int]]:
    return [single(model, prompt, new) for prompt, new in zip(PROMPTS, NEW, strict=True)]


@pytest.fixture(scope="module")
def llama() -> Any:
    return tiny("llama")


def single(model: Any, prompt: Sequence[int], new: int) -> list[int]:
    """mlx-lm's single-sequence greedy path."""
    return [int(token) for token, _ in generate_step(mx.array(list(prompt)), model, max_tokens=new)]


def make(
    model: Any,
    *,
    rows: int = 1,
    ahead: Ahead = Ahead.NOTHING,
    eos: Sequence[int] = (),
    slots: int = 1,
    attention: StepAttention | None = None,
) -> Generation:
    return Generation(
        model,
        prefill_rows=rows,
        prefill_tokens=64,
        eos=frozenset(eos),
        ahead=ahead,
        slots=slots,
        attention=attention,
    )


def row(i: int, **changes: Any) -> GenRow:
    return GenRow(**{"id": i, "tokens": PROMPTS[i], "max_tokens": NEW[i], **changes})


def run(generation: Generation, between: Callable[[int], object] = bool) -> Iterator[Step]:
    """All steps until no row is left; `between` is called after each."""
    for count in range(500):
        steps = generation.step()
        if not steps:
            return
        yield from steps
        between(count)
    raise AssertionError("the generation does not end")


def gathered(steps: Iterator[Step]) -> tuple[dict[int, list[int]], dict[int, Finish]]:
    tokens: dict[int, list[int]] = {}
    finished: dict[int, Finish] = {}
    for i, token, finish in steps:
        assert i not in finished
        tokens.setdefault(i, []).append(token)
        if finish is not None:
            finished[i] = finish
    return tokens, finished


@pytest.mark.parametrize("ahead", Ahead)
@pytest.mark.parametrize("rows", [1, 3])
def test_rows_that_join_and_end_in_mid_flight_get_the_tokens_they_get_alone(
    model: Any, alone: list[list[int]], rows: int, ahead: Ahead
) -> None:
    generation = make(model, rows=rows, ahead=ahead)
    waiting = [row(i) for i in range(len(PROMPTS))]

    def join(step: int) -> None:
        if step % 4 == 0 and waiting:
            generation.insert([waiting.pop(0) for _ in range(min(2, len(waiting)))])

    generation.insert([waiting.pop(0) for _ in range(4)])
    tokens, finished = gathered(run(generation, join))
    assert [tokens[i] for i in range(len(PROMPTS))] == alone
    assert set(finished.values()) == {Finish.LENGTH}
    assert generation.running == []
    assert generation.counters.step_rows == sum(NEW)


def test_the_models_answer_differently_to_different_contexts(model: Any, alone: list[list[int]]) -> None:
    """Else equality with the single path would show nothing."""
    assert len({token for tokens in alone for token in tokens}) >= 30
    changed = [*PROMPTS[3][:-4], (PROMPTS[3][-4] + 1) % VOCABULARY, *PROMPTS[3][-3:]]
    assert single(model, changed, NEW[3]) != alone[3]


def test_a_shared_prefix_changes_nothing(model: Any, alone: list[list[int]]) -> None:
    generation = make(model, rows=3)
    shared = PROMPTS[7][:50]
    prefix = generation.compute_prefix(shared)
    suffixes = [PROMPTS[7][50:], PROMPTS[1], PROMPTS[2], PROMPTS[2][:1], PROMPTS[6]]
    generation.insert([row(i, tokens=suffix, max_tokens=20, prefix=prefix) for i, suffix in enumerate(suffixes[:3])])
    generation.insert([row(9)])
    next_steps = generation.step()
    generation.insert(
        [row(3 + i, tokens=suffix, max_tokens=20, prefix=prefix) for i, suffix in enumerate(suffixes[3:])]
    )
    tokens, _ = gathered(iter([*next_steps, *run(generation)]))
    assert [tokens[i] for i in range(5)] == [single(model, shared + suffix, 20) for suffix in suffixes]
    assert tokens[9] == alone[9]
    assert generation.counters.prompt_tokens == 50 + sum(map(len, suffixes)) + LENGTHS[9]


@pytest.mark.parametrize("ahead", Ahead)
def test_an_end_token_stops_a_row_and_frees_its_slot(llama: Any, ahead: Ahead) -> None:
    whole = single(llama, PROMPTS[3], 40)
    end = whole[10]
    generation = make(llama, eos=[end, VOCABULARY + 5], ahead=ahead)
    generation.insert([row(3), row(4)])
    tokens, finished = gathered(run(generation))
    assert tokens[3] == whole[: whole.index(end) + 1]
    assert finished[3] is Finish.STOP


@pytest.mark.parametrize("ahead", Ahead)
def test_rows_taken_out_are_heard_of_no_more(llama: Any, ahead: Ahead) -> None:
    generation = make(llama, ahead=ahead)
    generation.insert([row(3), row(4), row(7)])
    first = [step for _ in range(5) for step in generation.step()]
    generation.remove([4, 99])
    assert {i for i, _ in generation.running} == {3, 7}
    tokens, _ = gathered(iter([*first, *run(generation)]))
    assert len(tokens[4]) == 5
    assert tokens[3] == single(llama, PROMPTS[3], NEW[3])
    assert tokens[7] == single(llama, PROMPTS[7], NEW[7])


@pytest.mark.parametrize("ahead", Ahead)
def test_tokens_of_a_step_under_way_are_not_lost_when_rows_join(llama: Any, ahead: Ahead) -> None:
    generation = make(llama, ahead=ahead)
    generation.insert([row(3)])
    steps = generation.step()
    generation.insert([row(4)])
    generation.insert([row(5)])
    tokens, _ = gathered(iter([*steps, *run(generation)]))
    assert {i: len(t) for i, t in tokens.items()} == {3: NEW[3], 4: NEW[4], 5: NEW[5]}
    assert tokens[3] == single(llama, PROMPTS[3], NEW[3])


def test_rows_of_equal_length_decode_without_a_mask(llama: Any) -> None:
    generation = make(llama)
    generation.insert([row(5), row(6)])
    tokens, _ = gathered(run(generation))
    assert generation.counters.level_steps == generation.counters.steps == NEW[5]
    assert tokens[6] == single(llama, PROMPTS[6], NEW[6])


@pytest.mark.parametrize("ahead", Ahead)
def test_gaps_are_closed_once_they_cost_more_than_that(llama: Any, ahead: Ahead) -> None:
    generation = make(llama, ahead=ahead)
    generation.insert([row(i) for i in range(10)])
    gathered(run(generation))
    counters = generation.counters
    assert counters.moved_rows > 0
    assert counters.idle_slots <= (MOVE_STEPS + 1) * 10
    assert counters.steps == max(NEW)


def test_prompts_together_count_their_padding(llama: Any) -> None:
    generation = make(llama, rows=2)
    generation.insert([row(3), row(4), row(1)])
    assert generation.counters.prompt_tokens == 40 + 60 + 5
    assert generation.counters.padding_tokens == 20


def test_memory_follows_the_rows(llama: Any) -> None:
    """Room for the rows that run and little more; given back when only short ones are left."""
    token_bytes = 4 * 2 * 2 * 16 * 4
    generation = make(llama)
    long = [VOCABULARY // 2] * 600
    generation.insert([row(0, tokens=long, max_tokens=2), row(3)])
    assert 2 * 602 * token_bytes <= generation.nbytes <= 2 * (602 + 128) * token_bytes
    gathered(run(generation))
    generation.insert([row(4)])
    assert generation.nbytes <= 2 * 128 * token_bytes


def test_memory_follows_the_rows_expected_together(llama: Any) -> None:
    generation = make(llama, slots=16)
    generation.insert([row(3, tokens=[5] * 9, max_tokens=2)])
    wide = generation.nbytes
    gathered(run(generation))
    generation.expect(4)
    generation.insert([row(4, tokens=[5] * 9, max_tokens=2)])
    assert generation.nbytes == wide / 4
    generation.expect(32)
    generation.insert([row(5, tokens=[5] * 9, max_tokens=2)])
    assert generation.nbytes == 2 * wide


def test_rows_get_the_same_tokens_when_the_way_prompts_are_computed_changes(llama: Any) -> None:
    generation = make(llama)
    generation.insert([row(0)])
    generation.prefill_as(rows=3, tokens=7)
    generation.insert([row(1), row(2), row(3)])
    tokens, _ = gathered(run(generation))
    assert tokens == {i: single(llama, PROMPTS[i], NEW[i]) for i in range(4)}


def test_a_step_and_a_joining_row_write_in_place() -> None:
    """A copy of the buffers would show as a peak."""
    wide = tiny("llama", num_key_value_heads=4, head_dim=128)
    generation = make(wide, slots=8)
    generation.insert([row(i, tokens=[i] * (490 - i), max_tokens=20) for i in range(7)])
    generation.step()
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    for _ in range(5):
        generation.step()
    largest = generation.nbytes / 8
    assert mx.get_peak_memory() - before < largest
    mx.reset_peak_memory()
    generation.insert([row(8, tokens=[3] * 40)])
    assert mx.get_peak_memory() - before < largest


def test_rows_with_samplers_and_processors_of_their_own_decode_beside_greedy_ones(llama: Any) -> None:
    seen: list[list[int]] = []

    def never(token: int) -> Callable[[mx.array, mx.array], mx.array]:
        def process(context: mx.array, logits: mx.array) -> mx.array:
            seen.append(context.tolist())  # type: ignore[arg-type]
            return mx.where(mx.arange(logits.shape[-1]) == token, -mx.inf, logits)

        return process

    whole = single(llama, PROMPTS[3], 12)
    generation = make(llama)
    least = lambda logprobs: mx.argmin(logprobs, axis=-1)  # noqa: E731
    generation.insert([row(4), row(3, processor=never(whole[4]), max_tokens=12), row(5, sampler=least)])
    tokens, _ = gathered(run(generation))
    assert tokens[4] == single(llama, PROMPTS[4], NEW[4])
    assert tokens[3][:4] == whole[:4]
    assert whole[4] not in tokens[3]
    assert seen[-1] == [PROMPTS[3][-1], *tokens[3][:-1]]
    logits = llama(mx.array([PROMPTS[5]]))[0, -1]
    assert tokens[5][0] == mx.argmin(logits).item()


@pytest.mark.parametrize("bad", [{"tokens": []}, {"max_tokens": 0}])
def test_a_row_without_prompt_or_room_is_refused(llama: Any, bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="a row needs"):
        make(llama).insert([row(3, **bad)])


def test_a_generation_without_rows_has_no_steps(llama: Any) -> None:
    generation = make(llama)
    assert generation.step() == []
    generation.insert([])
    assert generation.step() == []
    assert generation.nbytes == 0
