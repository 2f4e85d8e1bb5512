"""Exact counts of keys, also after they are folded away."""

import random
from collections import Counter

import pytest

from coordinator.intake import duplicates
from coordinator.intake.duplicates import Duplicates


@pytest.mark.parametrize("fold_after", [1, 7, 1 << 16])
def test_an_ordinal_counts_the_times_before(fold_after: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duplicates, "_RECENT", fold_after)
    rng = random.Random(5)
    keys = [rng.randbytes(16) for _ in range(30)]
    seen: Counter[bytes] = Counter()
    counted = Duplicates()
    for _ in range(500):
        key = rng.choice(keys)
        assert counted.ordinal(key) == seen[key]
        seen[key] += 1
