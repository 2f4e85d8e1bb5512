"""Prefixes worth sharing."""

import random
from array import array
from collections.abc import Sequence

import pytest

from coordinator.records import StoredRow
from coordinator.scheduling.prefix import LEAST_ROWS, LEAST_TOKENS, SAMPLE_ROWS, PrefixSearch, find_prefixes

DRAW = random.Random(3)


def some(count: int) -> list[int]:
    """Tokens that occur nowhere else."""
    return [DRAW.randrange(1 << 30) for _ in range(count)]


def packed(tokens: Sequence[int]) -> bytes:
    return array("I", tokens).tobytes()


def prompts(shared: Sequence[int], rows: int, rest: int = 20) -> list[bytes]:
    return [packed([*shared, *some(rest)]) for _ in range(rows)]


def found(sample: Sequence[bytes]) -> list[int]:
    """Lengths of the prefixes of a sample whose order is drawn anew, in tokens."""
    shuffled = list(sample)
    DRAW.shuffle(shuffled)
    return [len(prefix) // 4 for prefix in find_prefixes(shuffled).tokens]


@pytest.mark.parametrize(
    ("shared", "rows", "lengths"),
    [(64, LEAST_ROWS, [64]), (63, 100, []), (100, LEAST_ROWS - 1, []), (1000, 500, [1000])],
)
def test_a_prefix_is_shared_from_64_tokens_and_8_rows_on(shared: int, rows: int, lengths: list[int]) -> None:
    assert found(prompts(some(shared), rows)) == lengths


def test_few_rows_of_a_large_sample_are_not_worth_a_prefix() -> None:
    assert found(prompts(some(100), 19) + prompts([], 981)) == []
    assert found(prompts(some(100), 20) + prompts([], 980)) == [100]


def test_several_system_prompts_give_several_prefixes() -> None:
    one, two = some(200), some(300)
    sample = prompts(one, 50) + prompts(two, 50) + prompts([], 50)
    assert set(find_prefixes(sample).tokens) == {packed(one), packed(two)}


def test_a_longer_prefix_of_some_rows_counts_from_64_tokens_more_on() -> None:
    common = some(80)
    assert found(prompts(common, 40) + prompts([*common, *some(64)], 40)) == [144, 80]
    assert found(prompts(common, 40) + prompts([*common, *some(63)], 40)) == [80]


def test_a_prefix_that_all_but_a_few_rows_leave_for_a_longer_one_is_dropped() -> None:
    common = some(80)
    longer = [prompts([*common, *some(100)], 40) for _ in range(2)]
    assert found([*longer[0], *longer[1], *prompts(common, 3)]) == [180, 180]


def test_a_prefix_inside_a_prefix_inside_a_prefix_is_found() -> None:
    a = some(70)
    b = a + some(70)
    assert found(prompts(a, 20) + prompts(b, 20) + prompts(b + some(900), 20)) == [1040, 140, 70]


def test_a_row_always_keeps_a_token_of_its_own() -> None:
    same = some(100)
    sample = [packed(same)] * 30
    known = find_prefixes(sample)
    assert [len(prefix) // 4 for prefix in known.tokens] == [99]
    assert known.of(packed(same)) == packed(same[:99])
    assert known.of(packed(same[:99])) == b""


def test_a_row_takes_the_longest_prefix_that_it_begins_with() -> None:
    common = some(LEAST_TOKENS)
    longer = common + some(LEAST_TOKENS)
    known = find_prefixes(prompts(common, 20) + prompts(longer, 20))
    assert known.of(packed([*longer, 5])) == packed(longer)
    assert known.of(packed([*common, *longer])) == packed(common)
    assert known.of(packed([5, *longer])) == b""


def test_rows_are_split_by_prefix_in_their_order() -> None:
    shared = some(70)
    known = find_prefixes(prompts(shared, 20))
    tokens = [packed([*shared, 1]), packed([2]), packed([*shared, 3])]
    rows = [StoredRow(id=i, key=b"", tokens=each, max_tokens=1, sampling=1) for i, each in enumerate(tokens)]
    groups = known.split(rows)
    assert {prefix: [row.id for row in group] for prefix, group in groups.items()} == {packed(shared): [0, 2], b"": [1]}


def test_the_share_left_to_compute_is_that_of_the_sample() -> None:
    assert find_prefixes(prompts(some(300), 50, rest=100)).computed_share == pytest.approx(0.25)
    assert find_prefixes([]).computed_share == 1


def test_a_search_knows_prefixes_from_the_first_rows_and_again_from_enough_of_them() -> None:
    one, two = some(100), some(100)
    search = PrefixSearch()
    search.add(prompts(one, 64))
    assert search.found.tokens == (packed(one),)
    search.add(prompts(two, SAMPLE_ROWS))
    assert search.frozen
    assert set(search.found.tokens) == {packed(one), packed(two)}
    search.add(prompts(some(200), SAMPLE_ROWS))
    assert set(search.found.tokens) == {packed(one), packed(two)}


def test_a_frozen_search_keeps_what_it_has_found_in_few_rows() -> None:
    search = PrefixSearch()
    search.add(prompts(some(100), 3))
    search.freeze()
    search.add(prompts(some(100), 50))
    assert search.found.tokens == ()


def test_a_search_that_is_switched_off_finds_nothing() -> None:
    search = PrefixSearch(share=False)
    search.add(prompts(some(100), SAMPLE_ROWS))
    search.freeze()
    assert search.found.tokens == ()


def test_prefixes_agree_with_a_plain_count_over_random_trees() -> None:
    for _ in range(20):
        branches = [some(DRAW.randrange(150)) for _ in range(5)]
        branches += [branch + some(DRAW.randrange(150)) for branch in branches]
        sample = [row for branch in branches for row in prompts(branch, DRAW.randrange(3, 30), DRAW.randrange(1, 9))]
        known = find_prefixes(sample)
        for prefix in known.tokens:
            assert len(prefix) // 4 >= LEAST_TOKENS
            assert sum(known.of(row) == prefix for row in sample) >= LEAST_ROWS
