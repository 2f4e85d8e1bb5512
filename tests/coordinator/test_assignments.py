"""Rows in flight are in exactly one shard, and only their holders may answer."""

from dataclasses import replace

import pytest

from coordinator.records import OpenRow
from coordinator.scheduling.assignments import Assignments, Flight


def row(id: int) -> OpenRow:
    return OpenRow(id=id, length=10, max_tokens=5, sampling=1)


def flight(id: str, worker: str, *rows: int) -> Flight:
    return Flight(id=id, worker=worker, rows={n: row(n) for n in rows})


def test_a_row_cannot_be_sent_twice_while_it_is_in_flight() -> None:
    assignments = Assignments()
    assignments.send(flight("a-1", "a", 1, 2))
    with pytest.raises(AssertionError, match="already in a live shard"):
        assignments.send(flight("b-1", "b", 2))


def test_a_recorded_row_leaves_its_shard_and_an_empty_shard_is_gone() -> None:
    assignments = Assignments()
    assignments.send(flight("a-1", "a", 1, 2))
    assignments.recorded(1)
    assignments.validate()
    assert list(assignments.flights["a-1"].rows) == [2]
    assignments.recorded(2)
    assert not assignments.flights
    assert not assignments.may_answer("a", 2)


def test_a_worker_that_lost_a_row_may_still_answer_it_until_it_is_recorded() -> None:
    assignments = Assignments()
    assignments.send(flight("a-1", "a", 1))
    assert [r.id for r in assignments.release_worker("a")] == [1]
    assignments.send(flight("b-1", "b", 1))
    assert assignments.may_answer("a", 1)
    assert assignments.may_answer("b", 1)
    assert not assignments.may_answer("c", 1)
    assignments.recorded(1)
    assert not assignments.may_answer("a", 1)
    assignments.validate()


def test_releasing_takes_only_what_is_in_flight() -> None:
    assignments = Assignments()
    assignments.send(flight("a-1", "a", 1, 2, 3))
    assert [r.id for r in assignments.release([2, 9])] == [2]
    assert [r.id for r in assignments.release_shard("a-1")] == [1, 3]
    assert assignments.release_shard("a-1") == []
    assert len(assignments) == 0
    assignments.validate()


def with_a_copy() -> Assignments:
    """Rows 1 and 2 with a, row 2 with b too."""
    assignments = Assignments()
    assignments.send(flight("a-1", "a", 1, 2))
    assignments.send(replace(flight("b-1", "b", 2), copy=True))
    assignments.validate()
    return assignments


def test_a_row_may_be_with_two_workers_only_as_a_copy() -> None:
    assignments = with_a_copy()
    assert assignments.is_copied(2)
    assert assignments.has("b", 2)
    assert not assignments.has("b", 1)
    assert (assignments.burden("a").rows, assignments.burden("b").rows, len(assignments)) == (2, 1, 2)


def test_the_first_result_of_a_copied_row_ends_it_everywhere() -> None:
    assignments = with_a_copy()
    assert [flight.worker for flight in assignments.recorded(2)] == ["a", "b"]
    assignments.validate()
    assert not assignments.may_answer("b", 2)
    assert list(assignments.flights) == ["a-1"]


@pytest.mark.parametrize(("lost", "left"), [("a", "b"), ("b", "a")])
def test_a_copied_row_does_not_come_back_while_the_other_worker_has_it(lost: str, left: str) -> None:
    assignments = with_a_copy()
    assert 2 not in [row.id for row in assignments.release_worker(lost)]
    assignments.validate()
    holder = assignments.shard_of(2)
    assert holder is not None
    assert holder.worker == left
    assert [row.id for row in assignments.release([2], left)] == [2]
    assignments.validate()


def test_rows_are_released_from_the_worker_that_gives_them_back_alone() -> None:
    assignments = with_a_copy()
    assert assignments.release([2], "b") == []
    assert assignments.release([2], "b") == []
    assert [row.id for row in assignments.release([2], "a")] == [2]
    assignments.validate()


def test_rows_of_an_adopted_shard_may_come_one_after_another() -> None:
    assignments = Assignments()
    assignments.adopt(flight("a-1", "a", 1, 2))
    assignments.adopt(flight("a-1", "a", 3))
    assignments.validate()
    assert list(assignments.flights["a-1"].rows) == [1, 2, 3]
    assert assignments.burden("a").rows == 3
    assert assignments.may_answer("a", 3)
    with pytest.raises(AssertionError, match="already in a live shard"):
        assignments.adopt(flight("a-1", "a", 3))
