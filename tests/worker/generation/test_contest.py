"""Two ways of a step take turns until the faster one is known."""

import pytest

from worker.generation.contest import SKIPPED_STEPS, TURN_STEPS, TURNS, Contest

WHOLE = TURNS * TURN_STEPS


def contest(first_s: float, second_s: float, *, steps: int = WHOLE) -> tuple[Contest, list[bool]]:
    found = Contest()
    ways: list[bool] = []
    for _ in range(steps):
        ways.append(found.second("kind"))
        found.took(second_s if ways[-1] else first_s)
    return found, ways


@pytest.mark.parametrize(("first_s", "second_s", "second_wins"), [(2.0, 1.0, True), (1.0, 2.0, False)])
def test_the_faster_way_is_kept_to(first_s: float, second_s: float, second_wins: bool) -> None:
    found, ways = contest(first_s, second_s)
    assert ways.count(True) == ways.count(False) == WHOLE // 2
    for _ in range(3 * TURN_STEPS):
        assert found.second("kind") is second_wins
        found.took(100.0 if second_wins else 0.0)


def test_what_a_turn_begins_with_and_a_pause_do_not_decide() -> None:
    found = Contest()
    for step in range(WHOLE):
        second = found.second("kind")
        slow = second and (step % TURN_STEPS < SKIPPED_STEPS or step == WHOLE - 1)
        found.took(50.0 if slow else 1.0 if second else 2.0)
    assert found.second("kind")


def test_each_kind_has_a_contest_of_its_own() -> None:
    found, _ = contest(2.0, 1.0)
    assert found.second("kind")
    assert not found.second("other")
    found.took(1.0)
    assert found.second("kind")


def test_a_step_with_one_way_goes_it_and_counts_for_none() -> None:
    found, ways = contest(2.0, 1.0, steps=TURN_STEPS)
    assert not any(ways)
    assert not found.second(None)
    found.took(0.0)
    assert found.second("kind")
