"""The pool of open rows: what it gives, in which order, and that it loses none."""

from __future__ import annotations

import random
import time

import pytest

from coordinator.records import OpenRow
from coordinator.scheduling.backlog import Backlog

PLENTY = 1 << 40


def row(number: int, length: int, max_tokens: int = 10, sampling: int = 1) -> OpenRow:
    return OpenRow(id=number, length=length, max_tokens=max_tokens, sampling=sampling)


def pool(*rows: OpenRow) -> Backlog:
    backlog = Backlog()
    backlog.add(rows)
    return backlog


def lengths(rows: list[OpenRow]) -> list[int]:
    return [r.length for r in rows]


def test_the_longest_rows_go_first() -> None:
    backlog = pool(*[row(n, length) for n, length in enumerate([5, 900, 30, 31, 400])])
    assert lengths(backlog.take(rows=3, tokens=PLENTY)) == [900, 400, 31]
    assert lengths(backlog.take(rows=3, tokens=PLENTY)) == [30, 5]
    assert backlog.take(rows=3, tokens=PLENTY) == []


def test_rows_come_back_as_they_were_put_in() -> None:
    given = [row(7, 100, 20, 3), row(1 << 40, 4_000_000_000, 1, 3)]
    assert sorted(pool(*given).take(rows=9, tokens=PLENTY), key=lambda r: r.id) == given


def test_a_take_stays_under_its_tokens() -> None:
    backlog = pool(*[row(n, 90) for n in range(10)])
    assert len(backlog.take(rows=10, tokens=350)) == 3
    assert len(backlog) == 7


def test_a_row_over_the_tokens_still_goes_alone() -> None:
    backlog = pool(row(1, 500), row(2, 400))
    assert lengths(backlog.take(rows=10, tokens=100)) == [500]


def test_a_smaller_row_never_overtakes_one_for_which_the_tokens_do_not_last() -> None:
    backlog = pool(row(1, 500), row(2, 400), row(3, 5))
    assert lengths(backlog.take(rows=10, tokens=530)) == [500]


def test_a_take_holds_one_sampling_group() -> None:
    backlog = pool(row(1, 100, sampling=1), row(2, 99, sampling=2), row(3, 50, sampling=1), row(4, 98, sampling=2))
    first, second = backlog.take(rows=9, tokens=PLENTY), backlog.take(rows=9, tokens=PLENTY)
    assert [r.id for r in first] == [1, 3]
    assert [r.id for r in second] == [2, 4]


def test_only_rows_that_fit_the_worker_are_given() -> None:
    backlog = pool(row(1, 1000), row(2, 95), row(3, 96), row(4, 97))
    assert sorted(r.id for r in backlog.take(rows=9, tokens=PLENTY, longest=106)) == [2, 3]
    assert sorted(r.id for r in backlog.take(rows=9, tokens=PLENTY)) == [1, 4]


def test_a_fitting_row_is_found_behind_longer_ones_of_its_class_that_came_before() -> None:
    backlog = pool(row(1, 1000), row(2, 1001))
    assert lengths(backlog.take(rows=1, tokens=PLENTY)) == [1001]
    backlog.add([row(3, 990)])
    assert lengths(backlog.take(rows=9, tokens=PLENTY, longest=1000)) == [990]
    assert len(backlog) == 1


def test_fits_tells_whether_a_worker_could_take_anything() -> None:
    backlog = pool(row(1, 1000))
    assert not backlog.fits(1009)
    assert backlog.fits(1010)
    backlog.put_back([row(2, 5)])
    assert backlog.fits(15)


def test_rows_given_back_go_ahead_of_longer_ones_as_they_came() -> None:
    """Those that were in the batch of a worker that is lost come first, and once went behind all that it had queued."""
    backlog = pool(row(1, 1000))
    backlog.put_back([row(2, 5), row(3, 50)])
    assert [r.id for r in backlog.take(rows=9, tokens=PLENTY)] == [2, 3]
    assert [r.id for r in backlog.take(rows=9, tokens=PLENTY)] == [1]


def test_rows_given_back_that_do_not_fit_do_not_block_the_others() -> None:
    backlog = pool(row(1, 10))
    backlog.put_back([row(2, 5000)])
    assert [r.id for r in backlog.take(rows=9, tokens=PLENTY, longest=100)] == [1]
    assert len(backlog) == 1


def test_rows_given_back_obey_the_tokens_of_a_take() -> None:
    backlog = Backlog()
    backlog.put_back([row(n, 90) for n in range(5)])
    assert [len(backlog.take(rows=2, tokens=150)) for _ in range(6)] == [1, 1, 1, 1, 1, 0]


def test_totals_follow_what_is_put_in_and_taken() -> None:
    backlog = pool(row(1, 100, 7), row(2, 50, 7))
    backlog.put_back([row(3, 25, 7)])
    assert (len(backlog), backlog.input_tokens, backlog.max_tokens, backlog.tokens) == (3, 175, 21, 196)
    while backlog.take(rows=1, tokens=PLENTY):
        pass
    assert (len(backlog), backlog.input_tokens, backlog.max_tokens) == (0, 0, 0)


def test_adding_nothing_changes_nothing() -> None:
    backlog = Backlog()
    backlog.add([])
    assert len(backlog) == 0


@pytest.mark.parametrize("seed", range(6))
def test_no_row_is_lost_or_given_twice_however_adds_and_takes_alternate(seed: int) -> None:
    draw = random.Random(seed)
    backlog, outside, given = Backlog(), {}, set()
    made = 0
    for _ in range(300):
        action = draw.random()
        if action < 0.35:
            rows = [
                row(made + k, int(draw.lognormvariate(5, 1)) + 1, draw.choice([16, 16, 300]), draw.choice([1, 2]))
                for k in range(draw.randrange(60))
            ]
            made += len(rows)
            backlog.add(rows)
        elif action < 0.45 and outside:
            back = draw.sample(sorted(outside), min(4, len(outside)))
            backlog.put_back([outside.pop(number) for number in back])
            given -= set(back)
        else:
            longest = draw.choice([None, None, 120, 400])
            taken = backlog.take(rows=draw.randrange(1, 40), tokens=draw.randrange(1, 20_000), longest=longest)
            assert len({r.sampling for r in taken}) <= 1
            assert all(longest is None or r.length + r.max_tokens <= longest for r in taken)
            assert not given & {r.id for r in taken}
            given |= {r.id for r in taken}
            outside |= {r.id: r for r in taken}
        assert len(backlog) == made - len(given)
    while taken := backlog.take(rows=50, tokens=PLENTY):
        given |= {r.id for r in taken}
    assert given == set(range(made))
    assert backlog.tokens == 0


def test_shards_of_a_mixed_backlog_pad_no_more_than_those_of_a_sorted_list() -> None:
    draw = random.Random(1)
    rows = [row(n, int(draw.lognormvariate(6, 0.8)) + 1, 128) for n in range(20_000)]
    backlog = pool(*rows)
    ours = 0
    while taken := backlog.take(rows=32, tokens=PLENTY):
        ours += max(lengths(taken)) * len(taken)
    ranked = sorted(lengths(rows), reverse=True)
    assert ours == sum(ranked[start] * 32 for start in range(0, len(ranked), 32))


def test_ten_thousand_groups_of_one_row_are_taken_without_a_look_at_all_of_them():
    backlog = Backlog()
    backlog.add([OpenRow(id=n, length=20 + n % 900, max_tokens=64, sampling=n) for n in range(10_000)])
    started = time.perf_counter()
    taken = [backlog.take(rows=8, tokens=1 << 20, longest=None) for _ in range(200)]
    assert all(len(rows) == 1 for rows in taken)
    assert time.perf_counter() - started < 1  # 0.02 s; 20 s when each take visits every group


def test_rows_of_long_expected_answers_leave_first_once_answers_tell() -> None:
    """Short prompts may have the long answers; what runs last should be short."""
    backlog = Backlog()
    backlog.add([row(n, length=100 if n % 2 else 1000, max_tokens=500) for n in range(20)])
    assert backlog.take(rows=1, tokens=9999)[0].length == 1000
    backlog.order_by(lambda prompt, _most: 1 / prompt, 30)
    assert [one.length for one in backlog.take(rows=10, tokens=99999)] == [100] * 10
    backlog.order_by(lambda prompt, _most: prompt, 31)
    backlog.add([row(n, length=100, max_tokens=500) for n in range(20, 22)])
    assert backlog.take(rows=1, tokens=9999)[0].length == 100, "a few more answers change nothing"
    assert len(backlog.take(rows=99, tokens=99999)) + len(backlog.take(rows=99, tokens=99999)) == 10


def test_rows_of_a_new_class_are_found_although_the_order_is_kept() -> None:
    backlog = Backlog()
    backlog.add([row(1, length=100, max_tokens=10)])
    assert backlog.take(rows=1, tokens=999)
    backlog.add([row(2, length=900, max_tokens=10)])
    assert [one.id for one in backlog.take(rows=1, tokens=999)] == [2]


def test_only_what_was_given_back_is_taken_when_nothing_else_is_wanted() -> None:
    backlog = Backlog()
    backlog.add([row(1, 500), row(2, 400)])
    assert backlog.take(rows=4, tokens=10_000, back=True) == []
    backlog.put_back([row(3, 10)])
    assert backlog.back == 1
    assert [taken.id for taken in backlog.take(rows=4, tokens=10_000, back=True)] == [3]
    assert (backlog.back, len(backlog)) == (0, 2)
