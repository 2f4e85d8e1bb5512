"""Timing a model on made-up rows."""

from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models.cache import make_prompt_cache

from tests.tiny import CONFIGS, VOCABULARY, tiny
from worker.gauge import Gauge, made_up
from worker.generation.batch import Generation
from worker.generation.rows import GenRow
from worker.knee import Prefill

pytestmark = pytest.mark.mlx


def computed(model: Any, tokens: int) -> list[Any]:
    caches = make_prompt_cache(model)
    mx.eval(model(mx.array([[1 + at % 7 for at in range(tokens)]]), cache=caches))
    return caches


def sizes(generation: Generation) -> list[tuple[int, ...]]:
    return [array.shape for cache in generation._caches for array in cache.arrays]


@pytest.mark.parametrize("tokens", [3, 24, 40])
@pytest.mark.parametrize("name", CONFIGS)
def test_made_up_rows_take_the_place_that_computed_ones_would(name: str, tokens: int) -> None:
    """Windows are 24 tokens, so that they are passed, just filled, and not filled."""
    model = tiny(name)
    real = Generation(model, prefill_rows=1, prefill_tokens=64, eos=frozenset())
    real.insert([GenRow(id=0, tokens=[1 + at % 7 for at in range(tokens + 1)], max_tokens=4)])
    made = Generation(model, prefill_rows=1, prefill_tokens=64, eos=frozenset())
    made.insert([GenRow(id=0, tokens=[1], max_tokens=4, prefix=made_up(model, computed(model, 2), tokens))])
    for _ in range(3):
        assert len(real.step()) == len(made.step()) == 1
        assert sizes(real) == sizes(made)
    assert made._positions.width == real._positions.width


@pytest.mark.parametrize("name", CONFIGS)
def test_each_architecture_is_timed_at_any_batch(name: str) -> None:
    gauge = Gauge(tiny(name), vocabulary=VOCABULARY)
    for rows in (1, 3):
        sample = gauge.decode(rows, 30)
        assert sample.rows == rows
        assert sample.tps > 0


def test_memory_is_read_at_each_batch() -> None:
    gauge = Gauge(tiny("llama", num_key_value_heads=4, head_dim=128), vocabulary=VOCABULARY)
    kv_bytes = 2 * 4 * 4 * 128 * 4
    few, many = gauge.decode(2, 500), gauge.decode(12, 500)
    assert many.peak_bytes - few.peak_bytes > 8 * 500 * kv_bytes


def test_nothing_is_left_in_memory() -> None:
    gauge = Gauge(tiny("llama"), vocabulary=VOCABULARY)
    before = mx.get_active_memory()
    gauge.decode(8, 200)
    gauge.prefill(Prefill(rows=2, tokens=64), 60, 4)
    assert mx.get_active_memory() <= before


def test_the_draws_of_real_rows_are_not_disturbed() -> None:
    gauge = Gauge(tiny("llama"), vocabulary=VOCABULARY)
    mx.random.seed(5)
    undisturbed = mx.random.uniform(shape=(4,)).tolist()
    mx.random.seed(5)
    gauge.decode(2, 10)
    assert mx.random.uniform(shape=(4,)).tolist() == undisturbed


@pytest.mark.parametrize("rows", [1, 4])
def test_prompts_are_timed_with_a_setting(rows: int) -> None:
    setting = Prefill(rows=rows, tokens=64)
    sample = Gauge(tiny("qwen3_next"), vocabulary=VOCABULARY).prefill(setting, 50, 4)
    assert sample.setting == setting
    assert sample.tps > 0
