"""What finished rows tell of those that are not."""

from __future__ import annotations

import numpy as np
import pytest

from coordinator.scheduling.lengths import ENOUGH, Lengths, octave

MAX = 2048


def learnt(answers: list[int], prompt: int = 100) -> Lengths:
    lengths = Lengths()
    for answer in answers:
        lengths.ended(prompt, answer)
    return lengths


def test_before_any_row_has_ended_the_longest_answer_is_expected() -> None:
    lengths = Lengths()
    assert lengths.mean(octave(100), MAX) == MAX
    assert lengths.order(octave(100), MAX) == MAX
    assert lengths.total(octave(100), MAX, 7) == MAX


def test_the_first_few_rows_give_their_median() -> None:
    assert learnt([10, 100, 2000]).mean(octave(100), MAX) == pytest.approx(100, rel=0.05)


def test_then_the_mean_counts_and_never_exceeds_what_is_allowed() -> None:
    lengths = learnt([100, 300] * ENOUGH)
    assert lengths.mean(octave(100), MAX) == 200
    assert lengths.mean(octave(100), 50) == 50


def test_rows_are_ordered_by_what_seven_of_ten_stay_under() -> None:
    assert learnt(list(range(1, 1001))).order(octave(100), MAX) == pytest.approx(700, rel=0.05)


def test_long_prompts_are_judged_by_long_prompts_once_there_are_enough() -> None:
    lengths = learnt([100] * ENOUGH)
    for _ in range(ENOUGH - 1):
        lengths.ended(1000, 400)
    assert lengths.mean(octave(1000), MAX) < 400
    lengths.ended(1000, 400)
    assert lengths.mean(octave(1000), MAX) == 400
    assert lengths.mean(octave(100), MAX) == 100


def test_prompts_of_a_length_not_seen_yet_follow_the_trend_of_the_others() -> None:
    """Long prompts leave first: without a trend nobody would know before the end that short ones have long answers."""
    lengths = Lengths()
    for prompt, answer in ((1600, 50), (800, 100), (400, 200)):
        for _ in range(200):
            lengths.ended(prompt, answer)
    assert 350 < lengths.order(octave(200), MAX) < 700
    assert lengths.cost(100, MAX) > lengths.cost(200, MAX) > lengths.cost(400, MAX)


def test_a_trend_of_few_rows_is_hardly_believed() -> None:
    lengths = learnt([200] * ENOUGH, prompt=1000)
    lengths.ended(500, 400)
    assert lengths.mean(octave(16), MAX) < 300


def test_a_row_that_is_long_already_is_expected_to_become_as_long_as_the_long_ones() -> None:
    lengths = learnt([100] * 90 + [1000] * 10)
    assert lengths.total(octave(100), MAX, 0) == pytest.approx(190, rel=0.05)
    assert lengths.total(octave(100), MAX, 200) == pytest.approx(1000, rel=0.05)
    assert lengths.total(octave(100), MAX, 1500) == 1501
    assert lengths.total(octave(100), 1400, 1399) == 1400


def test_of_log_normal_answers_the_rest_is_foretold_on_average() -> None:
    rng = np.random.default_rng(4)
    answers = np.clip(200 * np.exp(rng.standard_normal(20_000)), 1, MAX).astype(int)
    lengths = learnt(answers.tolist())
    for done in (50, 200, 800):
        truth = answers[answers > done].mean()
        assert lengths.total(octave(100), MAX, done) == pytest.approx(truth, rel=0.06)
