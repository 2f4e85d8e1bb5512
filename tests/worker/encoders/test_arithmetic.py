"""GELU and attention from sums and products, against float64."""

import math

import mlx.core as mx
import numpy as np
import pytest

from worker.encoders.arithmetic import attend, gelu, power_of_two

pytestmark = pytest.mark.mlx


def test_gelu_is_exact_to_rounding() -> None:
    x = np.linspace(-12, 12, 20_001).astype(np.float32)
    exact = np.array([value * 0.5 * (1 + math.erf(value / math.sqrt(2))) for value in x.astype(np.float64)])
    off = np.abs(np.array(gelu(mx.array(x))) - exact)
    assert off.max() < 1.5e-6  # two steps of float32 at 8
    assert off[np.abs(x) < 3].max() < 5e-7
    assert off.mean() < 2e-7


def test_powers_of_two_are_exact_to_rounding_and_stop_at_the_smallest() -> None:
    y = np.concatenate([np.linspace(-126, 0, 30_001), [-1000.0, -np.inf]]).astype(np.float32)
    made = np.array(power_of_two(mx.array(y)))
    exact = 2.0 ** np.maximum(y.astype(np.float64), -126)
    assert np.abs(made / exact - 1).max() < 3e-7
    assert made[-1] == made[-2] < 2e-38


def test_attention_is_that_of_float64_with_and_without_padding() -> None:
    random = np.random.default_rng(0)
    queries, keys, values = (random.normal(size=(2, 3, 7, 8)).astype(np.float32) * 3 for _ in range(3))
    padding = np.zeros((2, 1, 1, 7), dtype=np.float32)
    padding[1, ..., 4:] = -np.inf
    for mask in (None, padding):
        scores = queries.astype(np.float64) @ keys.swapaxes(-1, -2) / math.sqrt(8) + (0 if mask is None else mask)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        exact = weights / weights.sum(-1, keepdims=True) @ values
        made = attend(*map(mx.array, (queries, keys, values)), None if mask is None else mx.array(mask))
        assert np.abs(np.array(made) - exact).max() < 1e-5 * np.abs(exact).max()


def test_scores_far_apart_give_the_largest_all_the_weight() -> None:
    queries = mx.array([[[[1000.0, 0.0]]]])
    keys = mx.array([[[[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]]]])
    values = mx.array([[[[1.0], [2.0], [3.0]]]])
    assert attend(queries, keys, values, None).item() == 1.0
