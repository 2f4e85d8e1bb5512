"""How many tokens a batch should have: what is sampled, when it ends, and what is in force."""

import pytest

from worker.knee import Curve, Sample
from worker.token_budget import BATCH_S, FIRST_TOKENS, MOST_TOKENS, TokenBudget, next_tokens

PLENTY = 1 << 30


def budget(*samples: Sample, ended: bool = False, most: int = PLENTY, provisional: int = 1024) -> TokenBudget:
    return TokenBudget(provisional=provisional, most=most, curve=Curve(bucket_tokens=64, samples=samples, ended=ended))


def sampled(tps: dict[int, float], most: int = PLENTY) -> list[Sample]:
    samples: list[Sample] = []
    while (tokens := next_tokens(samples, most_tokens=most)) is not None:
        samples.append(Sample(rows=tokens, tps=tps.get(tokens, max(tps.values()))))
    return samples


def test_budgets_double_until_twice_the_best_gains_nothing() -> None:
    grows = {256 << at: 1e5 * 2**at for at in range(5)}
    assert [sample.rows for sample in sampled(grows)] == [256 << at for at in range(6)]


def test_a_flat_curve_ends_after_two_samples() -> None:
    assert [sample.rows for sample in sampled({256: 1e6, 512: 1e6})] == [256, 512]


def test_a_dip_does_not_end_the_search_while_a_later_budget_can_gain() -> None:
    samples = [Sample(rows=256, tps=1e6), Sample(rows=512, tps=2e6), Sample(rows=1024, tps=1.9e6)]
    assert next_tokens(samples, most_tokens=PLENTY) is None
    assert next_tokens(samples[:2], most_tokens=PLENTY) == 1024


def test_no_budget_is_larger_than_memory_or_takes_longer_than_messages_can_wait() -> None:
    assert [sample.rows for sample in sampled({256: 1e5, 512: 2e5, 1024: 4e5}, most=600)] == [256, 512]
    slow = [Sample(rows=FIRST_TOKENS, tps=1.9 * FIRST_TOKENS / BATCH_S)]
    assert next_tokens(slow, most_tokens=PLENTY) is None
    assert max(sample.rows for sample in sampled({256 << at: 1e7 * 2**at for at in range(20)})) == MOST_TOKENS


def test_the_knee_is_in_force_once_measured_and_what_was_guessed_before() -> None:
    curve = (Sample(rows=256, tps=50.0), Sample(rows=512, tps=96.0), Sample(rows=1024, tps=100.0))
    assert budget().tokens == 1024
    assert budget(*curve[:2]).tokens == 1024
    assert budget(*curve, ended=True).tokens == 512
    assert budget(*curve, ended=True, most=300).tokens == 300
    assert budget(ended=True).tokens == 1024


def test_measuring_is_worth_it_once_with_work_enough_and_again_after_a_minute() -> None:
    some = budget(provisional=100)
    assert not some.due(1999)
    assert some.due(2000)
    some.begin()
    assert not some.due(2000)
    some.worked_s = 61.0
    assert some.due(2000)
    assert not budget(ended=True).due(10**9)


def test_samples_end_the_search_and_are_to_be_stored() -> None:
    some = budget()
    for tps in (100_000.0, 100_100.0):
        tokens = some.next_tokens()
        assert tokens is not None
        some.sampled(Sample(rows=tokens, tps=tps))
    assert some.curve.ended
    assert some.next_tokens() is None
    assert some.tokens == FIRST_TOKENS


@pytest.mark.parametrize(("met", "then"), [(800, 400), (5000, 512)])
def test_a_batch_that_found_no_memory_halves_the_budget(met: int, then: int) -> None:
    some = budget()
    some.halve(met)
    assert some.tokens == then
    some.halve(1)
    assert some.tokens == 1
