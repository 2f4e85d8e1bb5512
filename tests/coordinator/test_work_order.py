"""Which job a worker works for: by priority, by age, and by the model it holds."""

from __future__ import annotations

from coordinator.scheduling.work_order import Hands, Model, Wanted, in_order, offers

A: Model = ("a", "hash of a")
B: Model = ("b", "hash of b")


def job(number: int, model: Model = A, priority: int = 0) -> Wanted:
    return Wanted(job=number, priority=priority, model=model)


def hands(
    worker: str, holds: Model | None = None, *, busy: tuple[Model, ...] = (), refused: tuple[Model, ...] = ()
) -> Hands:
    return Hands(worker=worker, holds=holds[1] if holds else "", busy_with=frozenset(busy), refused=frozenset(refused))


def test_jobs_go_by_priority_and_then_by_age() -> None:
    assert [each.job for each in in_order([job(1), job(2, priority=1), job(3), job(4, priority=1)])] == [2, 4, 1, 3]


def test_all_workers_work_for_the_first_job() -> None:
    assert offers([job(2), job(1)], [hands("x", A), hands("y", A)]) == {1: ["x", "y"]}


def test_a_worker_keeps_its_model_when_a_job_of_equal_priority_needs_it() -> None:
    assert offers([job(1, A), job(2, B)], [hands("x", A), hands("y", B)]) == {1: ["x"], 2: ["y"]}


def test_a_worker_changes_its_model_for_a_job_of_higher_priority() -> None:
    assert offers([job(1, A, 1), job(2, B)], [hands("x", A), hands("y", B)]) == {1: ["x", "y"]}


def test_the_oldest_job_always_has_a_worker() -> None:
    given = offers([job(1, A), job(2, B)], [hands("x", B), hands("y", B)])
    assert sorted(len(workers) for workers in given.values()) == [1, 1]


def test_it_is_an_idle_worker_that_loads_the_model_nobody_holds() -> None:
    assert offers([job(1, A), job(2, B)], [hands("x", B), hands("new")]) == {1: ["new"], 2: ["x"]}


def test_a_worker_with_rows_of_one_model_is_not_given_those_of_another() -> None:
    assert offers([job(1, B)], [hands("x", A, busy=(A,))]) == {}
    assert offers([job(1, A), job(2, B)], [hands("x", B, busy=(B,))]) == {2: ["x"]}


def test_a_worker_that_could_not_load_a_model_is_not_offered_it_again() -> None:
    assert offers([job(1, A), job(2, B)], [hands("x", refused=(A,)), hands("y")]) == {2: ["x"], 1: ["y"]}


def test_a_worker_that_holds_no_row_of_a_job_gets_the_next_job() -> None:
    given = offers(
        [job(1), job(2)], [hands("small", A), hands("big", A)], lambda number, w: (number, w) != (1, "small")
    )
    assert given == {2: ["small"], 1: ["big"]}
