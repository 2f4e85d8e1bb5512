"""Samplers, seeded draws and the trie of labels."""

import mlx.core as mx
import pytest

from fleet.job import Sampling
from worker.sampling import LabelProcessor, LabelTrie, Samplers

LOGITS = mx.log(mx.array([[0.5, 0.3, 0.15, 0.05]]))
SEEDED = Sampling(temperature=1.0, seed=1)


def draws(sampling: Sampling, key: bytes, count: int = 40) -> list[int]:
    sampler = Samplers().sampler(sampling, key)
    return [int(sampler(LOGITS).item()) for _ in range(count)]


def test_greedy_rows_share_one_sampler_which_takes_the_best() -> None:
    samplers = Samplers()
    first = samplers.sampler(Sampling(), b"a")
    assert samplers.sampler(Sampling(top_p=0.5), b"b") is first
    assert first(LOGITS).tolist() == [0]


def test_unseeded_rows_of_a_group_share_one_sampler() -> None:
    samplers = Samplers()
    warm = Sampling(temperature=0.7)
    assert samplers.sampler(warm, b"a") is samplers.sampler(warm, b"b")
    assert samplers.sampler(warm, b"a") is not samplers.sampler(Sampling(temperature=0.8), b"a")


def test_seeded_draws_follow_from_seed_and_key_alone() -> None:
    mx.random.seed(1)
    first = draws(SEEDED, b"row")
    mx.random.seed(2)
    assert draws(SEEDED, b"row") == first
    assert draws(SEEDED, b"other") != first
    assert draws(Sampling(temperature=1.0, seed=2), b"row") != first
    assert len(set(first)) > 1


def test_draws_have_about_the_probabilities_asked_for() -> None:
    taken = draws(SEEDED, b"row", 400)
    assert taken.count(0) / 400 == pytest.approx(0.5, abs=0.1)


@pytest.mark.parametrize("seed", [None, 3])
def test_top_p_leaves_out_the_tail(seed: int | None) -> None:
    mx.random.seed(5)
    taken = draws(Sampling(temperature=1.0, top_p=0.7, seed=seed), b"row", 200)
    assert set(taken) == {0, 1}


def test_a_low_temperature_sharpens() -> None:
    assert set(draws(Sampling(temperature=0.05, seed=1), b"row")) == {0}


def allowed(trie: LabelTrie, *generated: int) -> set[int]:
    logits = LabelProcessor(trie, eos=[7])(mx.array([99, *generated]), mx.zeros((1, 8)))
    return {at for at, value in enumerate(logits[0].tolist()) if value > float("-inf")}


def test_only_tokens_towards_a_label_are_allowed_and_the_end_where_one_is_complete() -> None:
    trie = LabelTrie(["no", "nope", "yes"], [[1], [1, 2], [3, 4]])
    assert allowed(trie) == {1, 3}
    assert allowed(trie, 1) == {2, 7}
    assert allowed(trie, 3) == {4}
    assert allowed(trie, 1, 2) == {7}
    assert allowed(trie, 1, 7) == set(range(8))


def test_a_trie_knows_its_labels_and_its_depth() -> None:
    trie = LabelTrie(["no", "nope"], [[1], [1, 2]])
    assert trie.depth == 2
    node = trie.follow([1, 2])
    assert node is not None
    assert node.label == "nope"
    assert trie.follow([5]) is None
