"""Layers that attend by spans answer as they do by masks, and get mlx-lm's attention back."""

from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models import base, qwen3

from tests.tiny import CONFIGS, tiny
from tests.worker.generation.test_generation import NEW, PROMPTS, gathered, make, row, run, single
from worker.generation.attention import StepAttention, step_attention

pytestmark = pytest.mark.mlx

#: Without keys and values, and with attention sinks, which the kernel does not know.
NOT_BY_SPANS = {"mamba2", "gpt_oss"}


class BySpans:
    """A kernel out of MLX's own attention."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(
        self, queries: mx.array, keys: mx.array, values: mx.array, spans: mx.array, scale: mx.array
    ) -> mx.array:
        self.calls += 1
        columns = mx.arange(keys.shape[2])
        seen = (columns >= spans[:, :1]) & (columns < spans[:, 1:])
        number: Any = scale.item()
        return mx.fast.scaled_dot_product_attention(queries, keys, values, scale=number, mask=seen[:, None, None])


def fits_all(queries: mx.array, keys: mx.array, values: mx.array) -> bool:
    del queries, keys, values
    return True


@pytest.mark.parametrize("name", CONFIGS)
def test_rows_get_the_tokens_they_get_alone(name: str) -> None:
    model, kernel = tiny(name), BySpans()
    generation = make(model, attention=StepAttention(model, kernel, fits=fits_all), slots=12)
    waiting = [row(i) for i in range(len(PROMPTS))]

    def join(step: int) -> None:
        if step % 3 == 0 and waiting:
            generation.insert([waiting.pop(0)])

    generation.insert([waiting.pop(0) for _ in range(4)])
    tokens, _ = gathered(run(generation, join))
    assert [tokens[i] for i in range(len(PROMPTS))] == [
        single(model, prompt, new) for prompt, new in zip(PROMPTS, NEW, strict=True)
    ]
    assert (kernel.calls > 0) is (name not in NOT_BY_SPANS)


def test_what_the_kernel_does_not_fit_goes_the_usual_way() -> None:
    model, kernel = tiny("qwen3"), BySpans()
    generation = make(model, attention=StepAttention(model, kernel))
    generation.insert([row(3), row(4)])
    tokens, _ = gathered(run(generation))
    assert kernel.calls == 0
    assert tokens[3] == single(model, PROMPTS[3], NEW[3])


def test_the_layers_have_their_own_attention_back_after_a_step_and_after_an_error() -> None:
    attention = StepAttention(tiny("qwen3"), BySpans())
    with attention.lent(sharing=False):
        assert qwen3.scaled_dot_product_attention is not base.scaled_dot_product_attention
    assert qwen3.scaled_dot_product_attention is base.scaled_dot_product_attention
    with pytest.raises(ZeroDivisionError), attention.lent(sharing=False):
        raise ZeroDivisionError
    assert qwen3.scaled_dot_product_attention is base.scaled_dot_product_attention


@pytest.mark.skipif(mx.cuda.is_available(), reason="CUDA has a kernel")
def test_without_cuda_the_layers_keep_their_own_attention() -> None:
    with step_attention(tiny("qwen3")).lent(sharing=False):
        assert qwen3.scaled_dot_product_attention is base.scaled_dot_product_attention
