"""Results that no engine gives fail their row, and harm neither the totals nor the coordinator."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from coordinator.ledger.ledger import Ledger
from coordinator.ledger.results import MOST_TOKENS
from fleet.config import StateDir
from tests.ledgers import done, request, spec, unit


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"output_tokens": -1}, "count of tokens"),
        ({"input_tokens": MOST_TOKENS + 1}, "count of tokens"),
        ({"output_tokens": (1 << 64) - 1}, "count of tokens"),
        ({"vector": unit(1)}, "a vector for a text"),
    ],
)
def test_a_result_that_cannot_be_fails_its_row(tmp_path: Path, wrong: dict[str, int | bytes], says: str) -> None:
    """Counts over 64 bits once ended the coordinator, and a vector was kept beside a text."""
    with Ledger.open(StateDir(tmp_path / "state")) as ledger:
        job = ledger.begin_job(spec())[0].id
        opened = ledger.add_requests(job, [request("a", 1), request("b", 2, line=2)])
        good, bad = (done(row.id) for row in opened)
        ledger.commit("w", [good, replace(bad, **wrong)])  # type: ignore[arg-type]
        counts = ledger.counts(job)
        assert (counts.done, counts.error, counts.output_tokens) == (1, 1, good.output_tokens)
        assert says in str(list(ledger.answers(job))[1].error)
        ledger.validate()
