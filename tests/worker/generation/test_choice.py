"""Rows that choose alike are asked in one call, and each row gets what its own sampler says."""

import mlx.core as mx
import pytest

from fleet.job import Sampling
from worker.generation.choice import Choice, choose
from worker.sampling import Processor, Sampler, SeededSampler, greedy

pytestmark = pytest.mark.mlx

LOGITS = [[0.0, 3.0, 1.0], [5.0, 3.0, 1.0], [0.0, 3.0, 4.0], [9.0, 8.0, 7.0]]


class Counted:
    """A sampler that takes the least likely token and keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[mx.array] = []

    def __call__(self, logprobs: mx.array) -> mx.array:
        self.asked.append(logprobs)
        return mx.argmin(logprobs, axis=-1)


def choice(sampler: Sampler, processor: Processor | None = None, context: mx.array | None = None) -> Choice:
    return Choice(sampler=sampler, processor=processor, context=context)


def chosen(*choices: Choice | None) -> object:
    return choose(mx.array(LOGITS[: len(choices)]), choices).tolist()


def test_greedy_rows_get_the_likeliest_token() -> None:
    assert chosen(*[choice(greedy())] * 4) == [1, 0, 2, 0]


def test_one_sampler_is_asked_once_with_log_probabilities() -> None:
    sampler = Counted()
    assert chosen(choice(sampler), choice(sampler)) == [0, 2]
    (asked,) = sampler.asked
    assert mx.exp(asked).sum(axis=-1).tolist() == pytest.approx([1, 1])


def test_rows_of_other_samplers_are_not_shown_to_a_sampler() -> None:
    first, second = Counted(), Counted()
    tokens = chosen(choice(first), choice(greedy()), choice(second), choice(first))
    assert tokens == [0, 0, 0, 2]
    assert [asked.shape[0] for asked in first.asked + second.asked] == [2, 1]


def test_slots_that_nobody_reads_do_not_split_the_call() -> None:
    sampler = Counted()
    assert chosen(choice(sampler), None, choice(sampler))[0::2] == [0, 0]  # type: ignore[index]
    assert len(sampler.asked) == 1


def test_a_processor_changes_only_its_row_and_sees_its_tokens() -> None:
    def double_last(context: mx.array, logits: mx.array) -> mx.array:
        return mx.where(mx.arange(3) == context[-1], 100.0, logits)

    row = choice(greedy(), double_last, mx.array([1, 0, 2]))
    assert chosen(choice(greedy()), row, choice(greedy())) == [1, 2, 2]


def test_a_seeded_row_draws_the_same_beside_free_slots() -> None:
    sampling = Sampling(temperature=1.0, seed=5)
    logits = mx.random.normal((3, 50), key=mx.random.key(1))
    alone = [SeededSampler(sampling, bytes([n])) for n in range(20)]
    beside = [SeededSampler(sampling, bytes([n])) for n in range(20)]
    for one, two in zip(alone, beside, strict=True):
        row = choose(logits[1:2], [Choice(sampler=one, processor=None, context=None)])
        batch = choose(logits, [None, Choice(sampler=two, processor=None, context=None), None])
        assert batch[1].item() == row[0].item()
