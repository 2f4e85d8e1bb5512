"""Whatever breaks wherever, the job ends whole and its output is that of a job which nothing befell."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fault_yard import FaultYard, away
from tests.models import tiny_llama

pytestmark = pytest.mark.timeout(240)
SEED = 20261130
#: Points on a row's way through the coordinator, each of which one is killed at, with the passes before that.
ALL = {
    "after intake's commit": 1,
    "before the send": 3,
    "after the send": 2,
    "before the ledger's commit": 2,
    "inside the ledger's commit": 2,
    "after the ledger's commit": 2,
    "before the stream's delete": 2,
    "after the stream's delete": 2,
}
SHORT = {label: ALL[label] for label in ("after the send", "inside the ledger's commit", "before the stream's delete")}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture
def yard(tmp_path: Path) -> Iterator[FaultYard]:
    with FaultYard(tmp_path / "yard", FAKE_STEP_S="0.05") as yard:
        yield yard


@pytest.mark.parametrize(
    "points", [pytest.param(SHORT, id="three"), pytest.param(ALL, id="all", marks=pytest.mark.soak)]
)
def test_a_coordinator_killed_on_a_rows_way_loses_and_doubles_nothing(
    yard: FaultYard, model: Path, points: dict[str, int]
) -> None:
    (first, count), *others = points.items()
    yard.begin("ab", FAULT_KILL=f"{first}:{count}")
    job = yard.order(model, 60 + 40 * len(points), SEED)
    assert yard.up_ is not None
    for label, count in others:
        away(yard.up_, story=f"the end before {label}")
        yard.up_again(FAULT_KILL=f"{label}:{count}")
    away(yard.up_, story="the last end")
    yard.up_again()
    yard.await_over(job)
    yard.check(job, str(points))


def test_a_broker_wiped_then_killed_with_its_coordinator_and_a_worker_loses_nothing(
    yard: FaultYard, model: Path
) -> None:
    yard.begin("a")
    yard.join("b", FAULT_KILL="after the report:2")
    job = yard.order(model, 240, SEED)
    yard.grows(job)
    with yard.broker() as client:
        client.flushall()
    yard.await_event("the broker was emptied")
    yard.grows(job, 24)
    away(yard.workers["b"])
    assert yard.up_ is not None
    yard.kill("valkey")
    yard.up_.process.kill()
    yard.up_again()
    yard.rejoin("b")
    yard.await_over(job)
    yard.check(job, "wiped and killed")
