"""Rows that an earlier coordinator sent leave once: with the worker that has them, or free for anybody."""

from collections.abc import Iterable

from coordinator.records import OpenRow
from coordinator.scheduling.legacy import Legacy

SENT = [(1, "a", "a-1"), (2, "a", "a-2"), (2, "b", "b-1"), (3, "b", "b-1")]


def row(id: int) -> OpenRow:
    return OpenRow(id=id, length=10, max_tokens=5, sampling=1)


def ids(rows: Iterable[OpenRow]) -> list[int]:
    return [row.id for row in rows]


def claimed(*rows: int, job: int = 7) -> tuple[Legacy, list[int]]:
    legacy = Legacy(SENT)
    return legacy, ids(legacy.claim(job, map(row, rows))[0])


def test_only_rows_that_were_sent_wait_and_know_their_job() -> None:
    legacy, others = claimed(1, 2, 4)
    assert (others, legacy.unclaimed("b", {"b-1"}), legacy.workers()) == ([4], [3], {"a", "b"})
    assert legacy.heard("a", {"a-1"})[0] == {"a-1": [row(1).of_job(7)]}


def test_a_row_is_free_once_all_that_it_went_to_have_told_that_they_have_it_not() -> None:
    legacy, _ = claimed(1, 2, 3)
    assert legacy.heard("a", ()) == ({}, [row(1).of_job(7)])
    held, free = legacy.heard("b", {"b-1"})
    assert (ids(held["b-1"]), free, len(legacy)) == ([2, 3], [], 0)
    assert legacy.heard("a", {"a-1", "a-2"}) == ({}, [])


def test_a_row_stays_with_the_first_that_has_it() -> None:
    legacy, _ = claimed(2)
    assert ids(legacy.heard("a", {"a-2"})[0]["a-2"]) == [2]
    assert legacy.heard("b", {"b-1"}) == ({}, [])


def test_a_report_shows_that_its_rows_were_there() -> None:
    legacy, _ = claimed(2, 3)
    assert {shard: ids(rows) for shard, rows in legacy.told("b", [2, 9]).items()} == {"b-1": [2]}
    assert legacy.told("a", [3]) == {}, "it was never sent there"
    assert legacy.heard("b", {"b-1"})[0] == {"b-1": [row(3).of_job(7)]}


def test_a_row_reported_before_a_job_wants_it_is_as_any_other() -> None:
    legacy = Legacy(SENT)
    assert legacy.told("a", [1]) == {}
    assert legacy.claim(7, [row(1)]) == ([row(1)], [])


def test_a_row_that_two_jobs_want_is_kept_for_the_first_and_for_the_other_when_that_is_dropped() -> None:
    legacy, _ = claimed(1)
    assert legacy.claim(8, [row(1)]) == ([], [row(1)])
    assert legacy.drop(8) == []
    assert legacy.drop(7) == [1]
    assert legacy.claim(8, [row(1)]) == ([], [])
    assert legacy.heard("a", {"a-1"})[0] == {"a-1": [row(1).of_job(8)]}


def test_rows_that_no_job_claimed_are_known_until_their_worker_has_them_no_more() -> None:
    legacy, _ = claimed(3)
    legacy.heard("a", {"a-1"})
    assert (legacy.unclaimed("a", {"a-1"}), legacy.unclaimed("b", {"b-1"})) == ([1], [2])
    legacy.forget("a", [1])
    legacy.heard("b", ())
    assert (legacy.unclaimed("a", {"a-1"}), legacy.unclaimed("b", {"b-1"}), len(legacy)) == ([], [], 0)
    assert legacy.claim(7, [row(1), row(2)]) == ([row(1), row(2)], [])


def test_a_row_called_off_at_one_worker_is_still_with_another() -> None:
    legacy = Legacy(SENT)
    legacy.forget("a", legacy.unclaimed("a", {"a-2"}))
    assert (legacy.unclaimed("a", {"a-2"}), legacy.unclaimed("b", {"b-1"})) == ([], [2, 3])
