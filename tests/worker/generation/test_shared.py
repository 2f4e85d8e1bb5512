"""Columns that all rows share are read once for all, and no answer changes."""

from typing import Any

import mlx.core as mx
import pytest

from tests.tiny import CONFIGS, tiny
from tests.worker.generation.test_generation import PROMPTS, gathered, row, run, single
from worker.generation import attention
from worker.generation.batch import Ahead, Generation
from worker.generation.contest import Contest
from worker.generation.shared import attend_shared

pytestmark = pytest.mark.mlx

#: Without keys and values, and with attention sinks, which are the model's own business.
NOT_SHARED = {"mamba2", "gpt_oss"}


class Always(Contest):
    """Reads once what is shared, whatever it costs."""

    def second(self, kind: object) -> bool:
        return kind is not None


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Of each shared reading the columns shared."""
    seen: list[int] = []

    def counted(*arrays: mx.array, **options: Any) -> mx.array:
        seen.append(options["shared"])
        return attend_shared(*arrays, **options)

    monkeypatch.setattr(attention, "attend_shared", counted)
    return seen


def generation(model: Any, ahead: Ahead = Ahead.NOTHING) -> Generation:
    return Generation(model, prefill_rows=3, prefill_tokens=64, eos=frozenset(), ahead=ahead, slots=6, contest=Always())


@pytest.mark.parametrize("ahead", Ahead)
@pytest.mark.parametrize("name", CONFIGS)
def test_rows_of_one_prefix_get_the_tokens_they_get_alone(name: str, ahead: Ahead, calls: list[int]) -> None:
    model = tiny(name)
    batch = generation(model, ahead)
    shared = PROMPTS[7][:50]
    prefix = batch.compute_prefix(shared)
    suffixes = [PROMPTS[7][50:], PROMPTS[1], PROMPTS[2], PROMPTS[2][:1], PROMPTS[6]]
    lengths = [4, 20, 15, 20, 30]
    rows = [row(i, tokens=suffixes[i], max_tokens=lengths[i], prefix=prefix) for i in range(5)]
    batch.insert(rows[:3])
    first = [step for _ in range(3) for step in batch.step()]
    batch.insert(rows[3:])  # the row in the first slot ends soon after: the prefix is read in another's
    tokens, _ = gathered(iter([*first, *run(batch)]))
    assert [tokens[i] for i in range(5)] == [
        single(model, shared + suffix, new) for suffix, new in zip(suffixes, lengths, strict=True)
    ]
    assert set(calls) == (set() if name in NOT_SHARED else {50})
    assert 0 < batch.counters.shared_steps < batch.counters.steps  # the last row is alone in the end


def test_rows_of_two_prefixes_share_nothing(calls: list[int]) -> None:
    model = tiny("qwen3")
    batch = generation(model)
    prefixes = [batch.compute_prefix(PROMPTS[7][:length]) for length in (50, 40)]
    batch.insert([row(i, tokens=PROMPTS[1], max_tokens=8, prefix=prefix) for i, prefix in enumerate(prefixes)])
    tokens, _ = gathered(run(batch))
    assert calls == []
    assert tokens[1] == single(model, PROMPTS[7][:40] + PROMPTS[1], 8)


def test_a_row_alone_and_rows_without_a_prefix_share_nothing(calls: list[int]) -> None:
    batch = generation(tiny("qwen3"))
    batch.insert([row(0, tokens=PROMPTS[1], max_tokens=4, prefix=batch.compute_prefix(PROMPTS[7][:50]))])
    gathered(run(batch))
    batch.insert([row(1, max_tokens=4), row(2, max_tokens=4)])
    gathered(run(batch))
    assert calls == []


@pytest.mark.parametrize("masked", [False, True])
def test_shared_columns_weigh_as_if_each_row_had_read_them(masked: bool) -> None:
    rows, heads, key_heads, columns, shared = 5, 8, 2, 40, 24
    mx.random.seed(3)
    queries = mx.random.normal((rows, heads, 1, 16))
    keys, values = mx.random.normal((rows, key_heads, columns, 16)), mx.random.normal((rows, key_heads, columns, 12))
    keys[:, :, :shared], values[:, :, :shared] = keys[2:3, :, :shared], values[2:3, :, :shared]
    lengths = mx.array([30, 40, 25, 33, 28])[:, None, None, None]
    mask = mx.arange(columns) < lengths if masked else None
    made = attend_shared(queries, keys, values, scale=0.25, mask=mask, shared=shared, holder=2)
    usual = mx.fast.scaled_dot_product_attention(queries, keys, values, scale=0.25, mask=mask)
    assert made.shape == usual.shape == (rows, heads, 1, 12)
    assert float(mx.abs(made - usual).max()) < 1e-6
