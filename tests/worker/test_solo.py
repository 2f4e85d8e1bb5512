"""Generation over mlx-lm's loop gives each row the tokens it gets alone."""

from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.generate import generate_step
from mlx_lm.models.cache import KVCache

from fleet.job import Finish
from tests.models import tiny_llama
from worker.generation.batch import Generation as Batch
from worker.generation.rows import GenRow
from worker.models import load
from worker.sampling import greedy
from worker.solo import Generation, SoloGeneration

pytestmark = pytest.mark.mlx

PROMPTS = {id: [(5 + 7 * at * (id + 1)) % 350 + 3 for at in range(length)] for id, length in enumerate([3, 40, 1, 21])}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("model")
    return load(str(tiny_llama(folder / "tiny")), "", folder / "hashes").model


def alone(model: Any, prompt: list[int], count: int) -> list[int]:
    return [int(token) for token, _ in generate_step(mx.array(prompt), model, max_tokens=count)]


def row(id: int, max_tokens: int = 24) -> GenRow:
    return GenRow(id=id, tokens=list(PROMPTS[id]), max_tokens=max_tokens, sampler=greedy())


def batch(model: Any, rows: int = 1, tokens: int = 16, eos: frozenset[int] = frozenset()) -> Batch:
    return Batch(model, prefill_rows=rows, prefill_tokens=tokens, eos=eos)


def run(generation: Generation, taken: dict[int, list[int]], steps: int = 200) -> dict[int, Finish]:
    finished: dict[int, Finish] = {}
    for _ in range(steps):
        for id, token, finish in generation.step():
            taken.setdefault(id, []).append(token)
            if finish is not None:
                finished[id] = finish
    return finished


@pytest.mark.parametrize("together", [1, 2, 4])
def test_rows_that_join_and_end_at_different_times_get_the_tokens_they_get_alone(model: Any, together: int) -> None:
    generation = batch(model, rows=together)
    taken: dict[int, list[int]] = {}
    generation.insert([row(0, 9), row(1)])
    run(generation, taken, steps=5)
    generation.insert([row(2), row(3, 17)])
    finished = run(generation, taken, steps=40)
    assert finished == dict.fromkeys(range(4), Finish.LENGTH)
    for id, count in {0: 9, 1: 24, 2: 24, 3: 17}.items():
        assert taken[id] == alone(model, PROMPTS[id], count)
    assert len({token for tokens in taken.values() for token in tokens}) >= 30


def test_an_end_token_stops_a_row(model: Any) -> None:
    tokens = alone(model, PROMPTS[0], 12)
    generation = batch(model, eos=frozenset([tokens[7], 361]))
    taken: dict[int, list[int]] = {}
    generation.insert([row(0)])
    assert run(generation, taken, steps=30) == {0: Finish.STOP}
    assert taken[0] == tokens[: tokens.index(tokens[7]) + 1]


def test_rows_taken_out_leave_the_others_as_they_were(model: Any) -> None:
    generation = batch(model)
    taken: dict[int, list[int]] = {}
    generation.insert([row(0), row(1), row(3)])
    generation.remove([3])
    run(generation, taken, steps=4)
    generation.remove([0])
    run(generation, taken, steps=30)
    assert taken[1] == alone(model, PROMPTS[1], 24)
    assert len(taken[0]) < 24
    assert 3 not in taken


def test_the_counters_add_up(model: Any) -> None:
    generation = batch(model, rows=4)
    generation.insert([row(0, 4), row(1, 4)])
    run(generation, {}, steps=10)
    counters = generation.counters
    assert counters.prompt_tokens == 43
    assert counters.padding_tokens == 37
    assert (counters.steps, counters.step_rows) == (4, 8)
    assert counters.prefill_s > 0
    assert counters.decode_s > 0


def test_a_model_that_cannot_batch_decodes_the_same_tokens_one_row_at_a_time(model: Any) -> None:
    generation = SoloGeneration(model, prefill_tokens=16, eos=frozenset())
    for id in PROMPTS:
        taken: dict[int, list[int]] = {}
        generation.insert([row(id, 10)])
        assert run(generation, taken, steps=12) == {id: Finish.LENGTH}
        assert taken[id] == alone(model, PROMPTS[id], 10)
    assert generation.counters.steps == 40


def test_a_model_that_cannot_batch_has_no_prefixes(model: Any) -> None:
    assert SoloGeneration(model, prefill_tokens=16, eos=frozenset()).compute_prefix([5, 6, 7]) is None


def test_a_second_row_for_a_model_that_cannot_batch_is_our_bug(model: Any) -> None:
    generation = SoloGeneration(model, prefill_tokens=16, eos=frozenset())
    generation.insert([row(0)])
    with pytest.raises(RuntimeError, match="two rows"):
        generation.insert([row(1)])


def test_mlx_lm_still_batches_plain_caches() -> None:
    assert hasattr(KVCache, "merge")
