"""Ids used before are found, with where."""

import random

import pytest

from coordinator.intake import first_uses
from coordinator.intake.first_uses import FirstUses
from coordinator.records import Source


def test_the_first_use_is_told_within_a_file_and_across(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_uses, "_RECENT", 7)
    uses = FirstUses()
    order = list(range(100))
    random.Random(1).shuffle(order)
    for line, n in enumerate(order):
        assert uses.before(f"id-{n}", Source(file=f"{n % 3}.jsonl", line=line)) is None
    for line, n in enumerate(order):
        again = uses.before(f"id-{n}", Source(file="again.jsonl", line=1))
        assert again == Source(file=f"{n % 3}.jsonl", line=line)
    assert uses.before("other", Source(file="again.jsonl", line=2)) is None


def test_any_text_is_an_id() -> None:
    uses = FirstUses()
    here = Source(file="a", line=0)
    assert [uses.before(text, here) for text in ("", "\ud800", "é", "\ud800")] == [None, None, None, here]
