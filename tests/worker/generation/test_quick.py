"""The quicker attention and SwiGLU compute what MLX's do."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models import activations, llama

from tests.tiny import tiny
from worker.generation import quick as module
from worker.generation.prefill import prefill
from worker.generation.quick import attend, quick, swiglu

ROWS, HEADS, KEY_HEADS, NEW, COLUMNS, DIM = 2, 6, 2, 5, 12, 8


@pytest.fixture(autouse=True)
def _slow_exp(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on x86, wherever this runs."""
    monkeypatch.setattr(module, "_exp_is_slow", lambda: True)


def random(*shape: int, times: float = 1.0) -> mx.array:
    return mx.random.normal(shape, key=mx.random.key(sum(shape))) * times


def qkv(times: float = 1.0) -> tuple[mx.array, mx.array, mx.array]:
    queries = random(ROWS, NEW, HEADS, DIM, times=times).swapaxes(1, 2)
    return queries, random(ROWS, KEY_HEADS, COLUMNS, DIM, times=times), random(ROWS, KEY_HEADS, COLUMNS, DIM + 1)


def masks() -> list[Any]:
    seen = random(ROWS, 1, NEW, COLUMNS) > 0
    blind = mx.concatenate([mx.zeros_like(seen[:, :, :1]), seen[:, :, 1:]], axis=2)
    per_head = random(ROWS, HEADS, NEW, COLUMNS)
    return [None, "causal", seen, blind, seen[0, 0], per_head > 0, per_head, mx.where(seen, 0.0, -mx.inf)]


@pytest.mark.parametrize("case", range(8))
@pytest.mark.parametrize("times", [1.0, 30.0])
def test_attention_is_that_of_mlx(case: int, times: float) -> None:
    queries, keys, values = qkv(times)
    mask = masks()[case]
    usual = mx.fast.scaled_dot_product_attention(queries, keys, values, scale=0.3, mask=mask)
    ours = attend(queries, keys, values, scale=0.3, mask=mask)
    assert ours.shape == usual.shape
    assert mx.allclose(ours, usual, rtol=2e-5, atol=2e-6, equal_nan=True)
    assert not mx.allclose(ours, attend(queries, keys, values, scale=0.1, mask=mask), equal_nan=True)


def test_what_it_cannot_do_is_left_to_mlx() -> None:
    queries, keys, values = (array.astype(mx.bfloat16) for array in qkv())
    usual = mx.fast.scaled_dot_product_attention(queries, keys, values, scale=0.3)
    assert mx.array_equal(attend(queries, keys, values, scale=0.3), usual)
    queries, keys, values = qkv()
    sinks = random(HEADS)
    usual = mx.fast.scaled_dot_product_attention(queries, keys, values, scale=0.3, sinks=sinks)
    assert mx.array_equal(attend(queries, keys, values, scale=0.3, sinks=sinks), usual)
    gate, x = random(3, 4).astype(mx.float16), random(3, 4).astype(mx.float16)
    assert mx.array_equal(swiglu(gate, x), activations.swiglu(gate, x))


def test_swiglu_is_that_of_mlx_lm_however_large_its_input() -> None:
    gate = mx.concatenate([random(64, times=10.0), mx.array([0.0, 200.0, -200.0, 1e30, -1e30])])
    x = random(69)
    assert mx.allclose(swiglu(gate, x), activations.swiglu(gate, x), rtol=1e-5, atol=1e-6)


def test_the_functions_are_lent_and_taken_back() -> None:
    model, usual = tiny("llama"), mx.fast.scaled_dot_product_attention
    with quick(model):
        assert mx.fast.scaled_dot_product_attention is attend
        assert llama.swiglu is swiglu
    assert mx.fast.scaled_dot_product_attention is usual
    assert llama.swiglu is activations.swiglu


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3_text", "qwen3_moe"])
def test_a_prompts_state_is_the_usual_one(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny(family)
    prompts = [[3 + n % 17 for n in range(40)], [5 + n % 13 for n in range(33)]]

    def state() -> list[mx.array]:
        done = prefill(model, prompts, tokens_per_eval=32)
        return [array for row in done.pieces for piece in row if piece is not None for array in piece]

    ours = state()
    monkeypatch.setattr(module, "_exp_is_slow", lambda: False)
    usual = state()
    assert len(ours) == len(usual) > 0
    assert all(mx.allclose(a, b, rtol=1e-4, atol=1e-5) for a, b in zip(ours, usual, strict=True))
    assert any(mx.max(mx.abs(a - b)) > 0 for a, b in zip(ours, usual, strict=True)), "nothing was computed otherwise"
