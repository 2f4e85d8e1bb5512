"""The search for a row that kills engines ends, finds it, and lets everything else run."""

import random

import pytest

from coordinator.scheduling.suspects import GUILTY_AT, Suspects


def search(batch: list[int], kills: "set[int] | int", latest: list[int]) -> tuple[set[int], set[int], int]:
    """Plays crashes out; `kills` is the guilty rows, or the batch size above which any batch crashes."""

    def crashes(rows: list[int]) -> bool:
        return len(rows) > kills if isinstance(kills, int) else bool(kills & set(rows))

    suspects = Suspects()
    done: set[int] = set()
    guilty: set[int] = set()
    alone: dict[int, int] = {}
    suspects.crashed(batch, latest)
    runs = 0
    while (trial := suspects.take()) is not None:
        runs += 1
        rows = list(trial.rows)
        if not crashes(rows):
            done.update(rows)
            for row in rows:
                suspects.cleared(row)
        elif len(rows) == 1:
            alone[rows[0]] = alone.get(rows[0], 0) + 1
            if alone[rows[0]] >= GUILTY_AT:
                guilty.add(rows[0])
                suspects.guilty(rows[0])
                suspects.cleared(rows[0])
            else:
                suspects.crashed(rows, rows)
        else:
            suspects.crashed(rows, [])
    assert len(suspects) == 0
    return done, guilty, runs


def test_the_row_whose_prompt_started_last_is_tried_first_and_alone() -> None:
    suspects = Suspects()
    suspects.crashed([1, 2, 3, 4, 5], latest=[4])
    trials = [suspects.take() for _ in range(4)]
    assert [t.rows if t else None for t in trials] == [(4,), (1, 2), (3, 5), None]


def test_a_guilty_latest_row_costs_two_runs_alone_and_two_halves() -> None:
    done, guilty, runs = search(list(range(16)), {7}, latest=[7])
    assert guilty == {7}
    assert done == set(range(16)) - {7}
    assert runs == 4


@pytest.mark.parametrize("seed", range(20))
def test_every_guilty_row_is_found_and_no_other(seed: int) -> None:
    rng = random.Random(seed)
    batch = rng.sample(range(1000), rng.randint(1, 64))
    kills = set(rng.sample(batch, rng.randint(0, min(3, len(batch)))))
    done, guilty, runs = search(batch, kills, latest=rng.sample(batch, 1))
    assert guilty == kills, f"seed {seed}"
    assert done == set(batch) - kills, f"seed {seed}"
    assert runs <= 2 + 4 * max(len(kills), 1) * (len(batch).bit_length() + 1), f"seed {seed}"


def test_a_crash_of_size_alone_blames_nobody() -> None:
    done, guilty, _ = search(list(range(32)), 8, latest=[])
    assert guilty == set()
    assert done == set(range(32))


def test_a_case_closes_with_its_last_suspect() -> None:
    suspects = Suspects()
    suspects.crashed([1, 2], latest=[])
    assert 1 in suspects
    assert suspects.cleared(1) is None
    case = suspects.cleared(2)
    assert case is not None
    assert not case.explained
    assert suspects.cleared(2) is None


def test_crashes_that_follow_each_other_are_cases_of_their_own() -> None:
    suspects = Suspects()
    suspects.crashed([1, 2], latest=[])
    suspects.crashed([3, 4], latest=[])
    assert suspects.cleared(3) is None
    assert suspects.cleared(4) is not None
    assert 1 in suspects


def test_a_guilty_row_explains_the_whole_case() -> None:
    suspects = Suspects()
    suspects.crashed([1, 2, 3], latest=[])
    suspects.crashed([2, 3], latest=[])
    suspects.guilty(2)
    assert suspects.cleared(2) is None
    assert suspects.cleared(3) is None
    case = suspects.cleared(1)
    assert case is not None
    assert case.explained


def test_where_a_suspect_crashed_is_known_until_it_is_cleared_and_whose_crash_it_was_to_the_end() -> None:
    suspects = Suspects()
    suspects.crashed([1, 2], latest=[], worker="air")
    suspects.crashed([2], latest=[2], worker="mini")
    assert [suspects.crashes_on([1, 2], worker) for worker in ("air", "mini", "studio")] == [2, 1, 0]
    assert [suspects.cases_of(worker) for worker in ("air", "mini")] == [1, 0]
    suspects.cleared(1)
    case = suspects.cleared(2)
    assert case is not None
    assert (case.worker, suspects.crashes_on([1, 2], "air"), suspects.cases_of("air")) == ("air", 0, 0)
