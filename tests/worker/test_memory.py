"""The arithmetic of what fits."""

import pytest

from worker import memory

GIB = 1 << 30


def limits_of(budget_bytes: int = GIB, context_tokens: int = 8192) -> memory.Limits:
    return memory.limits(context_tokens=context_tokens, kv_bytes=1024, budget_bytes=budget_bytes)


def test_the_budget_is_what_model_and_activations_leave_of_the_planned_share() -> None:
    budget = memory.budget_bytes(working_set_bytes=100 * GIB, weight_bytes=20 * GIB, activation_bytes=5 * GIB)
    assert budget == 60 * GIB


def test_a_model_larger_than_the_machine_leaves_nothing() -> None:
    assert memory.budget_bytes(working_set_bytes=GIB, weight_bytes=2 * GIB, activation_bytes=0) == 0


def test_tokens_are_paid_twice_for_the_copies_at_joining() -> None:
    assert limits_of(GIB).budget_tokens == GIB // 2048


@pytest.mark.parametrize(("prompt", "new", "charged"), [(1, 1, 256), (200, 56, 256), (200, 57, 512)])
def test_a_row_is_charged_in_steps_of_allocation(prompt: int, new: int, charged: int) -> None:
    assert memory.charged_tokens(prompt, new) == charged


def test_a_row_over_the_context_is_refused_with_figures() -> None:
    reason = memory.refusal(8000, 193, limits_of())
    assert reason is not None
    assert "8000 prompt tokens and 193 new ones" in reason
    assert "8192" in reason
    assert memory.refusal(8000, 192, limits_of()) is None


def test_a_row_over_the_memory_is_refused_with_figures() -> None:
    reason = memory.refusal(4000, 96, limits_of(budget_bytes=4 << 20))
    assert reason is not None
    assert "need 8.0 MiB" in reason
    assert "4.0 MiB are left" in reason


def test_what_is_held_beside_rows_takes_as_much_of_the_budget_as_it_takes_of_the_bytes() -> None:
    limits = limits_of(budget_bytes=64 << 20)
    half = memory.tokens_of(32 << 20, limits)
    assert half == pytest.approx(limits.budget_tokens / 2, abs=1)
    assert memory.tokens_of(0, limits) == 0
    assert memory.tokens_of(1, limits) == 1


def test_a_linux_working_set_is_a_share_of_what_is_available_and_what_we_hold() -> None:
    text = "MemTotal:  99 kB\nMemFree: 1 kB\nMemAvailable:   2048 kB\n"
    assert memory.linux_working_set_bytes(text, own_bytes=5) == (1 << 20) + 5


def test_an_unknown_meminfo_falls_back_to_the_physical_memory() -> None:
    assert memory.linux_working_set_bytes("", own_bytes=0) > 1 << 20
