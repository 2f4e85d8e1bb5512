"""Computed prompts: who runs together, what it costs in padding, and that a prefix is only read."""

import random
from typing import Any

import mlx.core as mx
import pytest

from tests.tiny import VOCABULARY, tiny
from worker.generation.prefill import compute_prefix, groups, prefill

pytestmark = pytest.mark.mlx

DRAW = random.Random(2)
PROMPTS = [[DRAW.randrange(VOCABULARY) for _ in range(length)] for length in (70, 40, 39, 5)]


@pytest.mark.parametrize(
    ("lengths", "rows", "expected"),
    [
        ([5, 9, 7, 9], 2, [[1, 3], [2, 0]]),
        ([5, 9, 7], 1, [[1], [2], [0]]),
        ([3], 8, [[0]]),
        ([], 8, []),
    ],
)
def test_neighbours_in_length_run_together_longest_first(
    lengths: list[int], rows: int, expected: list[list[int]]
) -> None:
    assert list(groups(lengths, rows=rows)) == expected


def same(left: Any, right: Any) -> bool:
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(same(a, b) for a, b in zip(left, right, strict=True))
    return left is right is None or bool(mx.allclose(left, right, atol=1e-4, rtol=1e-3).item())


@pytest.mark.parametrize("name", ["llama", "gemma3_text", "mamba2", "falcon_h1"])
@pytest.mark.parametrize("tokens", [16, 64, 512])
def test_prompts_together_end_in_the_state_they_end_in_alone(name: str, tokens: int) -> None:
    model = tiny(name)
    together = prefill(model, PROMPTS, tokens_per_eval=tokens)
    for prompt, pieces in zip(PROMPTS, together.pieces, strict=True):
        assert same(pieces, prefill(model, [prompt], tokens_per_eval=1000).pieces[0])
    assert together.positions >= sum(map(len, PROMPTS))


def test_equal_prompts_have_no_padding() -> None:
    assert prefill(tiny("mamba2"), [PROMPTS[0], PROMPTS[0]], tokens_per_eval=32).positions == 140


@pytest.mark.parametrize("rows", [PROMPTS[1:], [PROMPTS[1]], [PROMPTS[1], PROMPTS[1]]])
@pytest.mark.parametrize("name", ["llama", "gemma3_text", "mamba2", "falcon_h1"])
def test_a_prefix_is_read_and_never_written(name: str, rows: list[list[int]]) -> None:
    model = tiny(name)
    prefix = compute_prefix(model, PROMPTS[0], tokens_per_eval=32)
    size = prefix.nbytes
    first = prefill(model, rows, tokens_per_eval=32, prefix=prefix)
    again = prefill(model, rows, tokens_per_eval=32, prefix=prefix)
    assert same(first.pieces, again.pieces)
    whole = prefill(model, [PROMPTS[0] + PROMPTS[1]], tokens_per_eval=32)
    assert same(first.pieces[0], whole.pieces[0])
    assert prefix.nbytes == size > 0


def test_a_prompt_of_one_token_has_nothing_to_compute() -> None:
    assert prefill(tiny("llama"), [[]], tokens_per_eval=32).pieces == [[None] * 4]
