"""Whatever breaks wherever, the job ends whole and its output is that of a job which nothing befell."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fault_yard import FaultYard, away
from tests.models import tiny_llama

SEED = 20261130
#: Points on a row's way through the coordinator, each of which one is killed at, with the passes before that.
COORDINATOR = {
    "before the send": 3,
    "after the send": 2,
    "before the ledger's commit": 2,
    "inside the ledger's commit": 2,
    "after the ledger's commit": 2,
    "before the stream's delete": 2,
    "after the stream's delete": 2,
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("model") / "tiny")


@pytest.mark.timeout(240)
def test_a_coordinator_killed_at_each_point_of_a_rows_way_loses_and_doubles_nothing(
    tmp_path: Path, model: Path
) -> None:
    with FaultYard(tmp_path / "yard", FAKE_STEP_S="0.05") as yard:
        yard.begin("ab", FAULT_KILL="after intake's commit:1")
        job = yard.order(model, 400, SEED)
        for label, count in COORDINATOR.items():
            assert yard.up_ is not None
            away(yard.up_, story=f"the end before {label}")
            yard.up_again(FAULT_KILL=f"{label}:{count}")
        away(yard.up_, story="the last end")
        yard.up_again()
        yard.await_over(job)
        yard.check(job, str(COORDINATOR))
