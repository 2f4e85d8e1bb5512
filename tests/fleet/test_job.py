"""A row's key names everything that changes its answer, and nothing else."""

from dataclasses import replace

import pytest

from fleet.job import KEY_BYTES, KeyHeader, KeyMaker, Sampling, salted

HEADER = KeyHeader(model_hash="m", tokenizer_hash="t", sampling=Sampling(), max_tokens=8)
TOKENS = b"\x01\0\0\0\x02\0\0\0"


def test_equal_computations_have_equal_keys_of_sixteen_bytes() -> None:
    assert KeyMaker(HEADER).key(TOKENS) == KeyMaker(replace(HEADER)).key(bytes(TOKENS))
    assert len(KeyMaker(HEADER).key(TOKENS)) == KEY_BYTES


@pytest.mark.parametrize(
    "other",
    [
        replace(HEADER, model_hash="n"),
        replace(HEADER, tokenizer_hash="u"),
        replace(HEADER, max_tokens=9),
        replace(HEADER, duplicate=1),
        replace(HEADER, salt="x"),
        *[
            replace(HEADER, sampling=sampling)
            for sampling in (
                Sampling(temperature=0.5),
                Sampling(top_p=0.9),
                Sampling(seed=1),
                Sampling(stop=("a",)),
                Sampling(labels=("a",), label_tokens=((1,),)),
            )
        ],
    ],
)
def test_whatever_changes_the_answer_changes_the_key(other: KeyHeader) -> None:
    assert KeyMaker(other).key(TOKENS) != KeyMaker(HEADER).key(TOKENS)


def test_a_salt_makes_other_keys_of_which_the_bare_one_can_be_had() -> None:
    bare, fresh = KeyMaker(HEADER).key(TOKENS), KeyMaker(replace(HEADER, salt="x")).key(TOKENS)
    assert fresh != bare
    assert salted(fresh, "x") == bare
    assert salted(bare, "") == bare


def test_one_maker_can_be_used_again() -> None:
    maker = KeyMaker(HEADER)
    first = maker.key(TOKENS)
    assert maker.key(TOKENS + TOKENS) != first
    assert maker.key(TOKENS) == first
