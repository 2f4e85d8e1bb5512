"""Which rows join the batch, and when."""

from dataclasses import replace

import pytest

from fleet.job import Sampling
from worker.batching import ORDINARY, Lane, Pool, Row, admit, cohort_due, lane_of

HALF = lane_of("w-9", exclusive=False, cap=2)
ALONE = lane_of("w-8", exclusive=True, cap=0)


def row(id: int, length: int = 10, lane: Lane = ORDINARY) -> Row:
    return Row(
        id=id,
        key=bytes(16),
        tokens=[1] * length,
        max_tokens=5,
        sampling=Sampling(),
        lane=lane,
        charged_tokens=length + 5,
    )


def pool_of(*rows: Row) -> Pool:
    pool = Pool()
    for each in rows:
        pool.put(each)
    pool.validate()
    return pool


def take(pool: Pool, *running: Row, cap: int = 8, budget_tokens: int = 10**6, at_most: int = 8) -> list[int]:
    taken = pool.take(running, cap=cap, budget_tokens=budget_tokens, at_most=at_most)
    pool.validate()
    return [each.id for each in taken]


def test_rows_join_longest_first_whatever_shard_brought_them() -> None:
    pool = pool_of(row(1, 10), row(2, 30), row(3, 20))
    assert take(pool, cap=2) == [2, 3]
    assert take(pool) == [1]
    assert len(pool) == 0


def test_no_more_rows_join_than_asked_for() -> None:
    pool = pool_of(row(1), row(2), row(3))
    assert take(pool, at_most=2) == [1, 2]
    assert len(pool) == 1


def test_an_exclusive_row_waits_for_an_empty_batch_and_holds_the_others_back() -> None:
    pool = pool_of(row(1), row(2, lane=ALONE), row(3))
    assert take(pool, row(9)) == []
    assert take(pool) == [2]
    assert take(pool, row(2, lane=ALONE)) == []
    assert take(pool) == [1, 3]


def test_two_exclusive_shards_never_share_a_batch() -> None:
    other = lane_of("w-7", exclusive=True, cap=0)
    pool = pool_of(row(1, lane=ALONE), row(2, lane=other))
    first = take(pool)
    assert len(first) == 1
    assert take(pool, row(first[0], lane=other)) == []


def test_a_shard_with_a_cap_runs_under_it_before_ordinary_rows() -> None:
    pool = pool_of(row(1, lane=HALF), row(2, lane=HALF), row(3, lane=HALF), row(4))
    assert take(pool) == [1, 2]
    assert take(pool, row(1, lane=HALF)) == [3]
    assert take(pool, row(3, lane=HALF)) == []
    assert take(pool) == [4]


def test_a_shards_cap_above_the_engines_changes_nothing() -> None:
    wide = lane_of("w-1", exclusive=False, cap=50)
    assert take(pool_of(*(row(id, lane=wide) for id in range(9))), cap=3) == [0, 1, 2]


def test_forgotten_rows_are_gone() -> None:
    pool = pool_of(row(1), row(2), row(3, lane=ALONE))
    pool.forget([2, 3, 77])
    assert take(pool) == [1]


def test_each_row_is_charged_as_much_as_the_longest_beside_it() -> None:
    assert admit([100, 10, 10], [], cap=8, budget_tokens=250) == 2
    assert admit([10], [100, 100], cap=8, budget_tokens=299) == 0
    assert admit([10], [100, 100], cap=8, budget_tokens=300) == 1


def test_a_row_alone_joins_even_an_exhausted_budget() -> None:
    assert admit([100, 1], [], cap=8, budget_tokens=50) == 1


def test_a_row_that_must_wait_for_room_is_not_overtaken() -> None:
    assert admit([200, 1, 1], [10], cap=8, budget_tokens=399) == 0


@pytest.mark.parametrize(
    ("waiting", "running", "cap", "due"),
    [
        (50, 0, 32, True),
        (50, 31, 32, False),
        (50, 28, 32, True),
        (1, 31, 32, True),
        (2, 31, 32, False),
        (50, 3, 4, True),
        (50, 4, 4, False),
        (50, 9, 4, False),
    ],
)
def test_rows_join_in_cohorts_unless_fewer_wait(waiting: int, running: int, cap: int, due: bool) -> None:
    assert cohort_due(waiting, running, cap=cap) is due


def test_a_broken_pool_is_told() -> None:
    pool = pool_of(row(1))
    pool._lanes[ORDINARY].insert(0, replace(row(2), lane=ALONE))
    with pytest.raises(AssertionError, match="another lane"):
        pool.validate()
