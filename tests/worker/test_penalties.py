"""Penalties look at a row's own tokens."""

import mlx.core as mx
import pytest

from fleet.job import Sampling
from worker.penalties import PenaltyProcessor, penalizes

PROMPT = [1, 4]
LOGITS = [2.0, 1.0, -1.0, 0.5, -2.0, 0.0]


def changed(sampling: Sampling, answer: list[int], dtype: mx.Dtype = mx.float32) -> list[float]:
    processor = PenaltyProcessor(sampling, PROMPT)
    logits = processor(mx.array([PROMPT[-1], *answer]), mx.array([LOGITS], dtype=dtype))
    assert logits.dtype == dtype
    values: list[float] = logits[0].tolist()
    return values


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        (Sampling(presence_penalty=0.5), [1.5, 1.0, -1.5, 0.5, -2.0, 0.0]),
        (Sampling(frequency_penalty=0.5), [1.5, 1.0, -2.0, 0.5, -2.0, 0.0]),
        (Sampling(presence_penalty=-1.0, frequency_penalty=0.5), [2.5, 1.0, -1.0, 0.5, -2.0, 0.0]),
        (Sampling(repetition_penalty=2.0), [1.0, 0.5, -2.0, 0.5, -4.0, 0.0]),
        (Sampling(repetition_penalty=2.0, presence_penalty=0.5), [0.5, 0.5, -2.5, 0.5, -4.0, 0.0]),
    ],
)
def test_a_penalty_changes_the_tokens_that_were_there(sampling: Sampling, expected: list[float]) -> None:
    assert penalizes(sampling)
    assert changed(sampling, [2, 0, 2]) == pytest.approx(expected)


def test_before_the_first_token_only_repetition_knows_something() -> None:
    assert changed(Sampling(presence_penalty=2.0, frequency_penalty=2.0), []) == LOGITS
    assert changed(Sampling(repetition_penalty=2.0), []) == [2.0, 0.5, -1.0, 0.5, -4.0, 0.0]


def test_tokens_are_counted_exactly_in_half_precision_too() -> None:
    values = changed(Sampling(frequency_penalty=0.001), [3] * 1000, mx.bfloat16)
    assert values[3] == pytest.approx(-0.5)


def test_a_row_without_penalties_needs_no_processor() -> None:
    assert not penalizes(Sampling(temperature=1.0, top_p=0.5, seed=1, stop=("a",)))
