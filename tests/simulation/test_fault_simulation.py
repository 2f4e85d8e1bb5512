"""A thousand fleets on a simulated clock, broken at moments a seed decides: nothing is lost, doubled or held up."""

from __future__ import annotations

import inspect
import logging
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from coordinator.control.controller import Controller
from coordinator.control.job_run import JobRun
from coordinator.control.watch import Watch
from coordinator.ledger import results as ledger_results
from coordinator.scheduling.assignments import Assignments
from tests.simulation.world import Plan, ViolationError, run

SEEDS, GROUP = 1000, 100
#: Seeds after which a broken fleet must have been found out.
SOON = 120


@pytest.fixture
def folder() -> Iterator[Path]:
    """For ledgers, in memory where that is possible: each is written through at every commit."""
    memory = Path("/dev/shm")
    path = Path(tempfile.mkdtemp(dir=memory if memory.is_dir() else None))
    yield path
    shutil.rmtree(path)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)  # each fault is worth a line or two, a hundred thousand in all
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("first", range(0, SEEDS, GROUP))
def test_whatever_breaks_every_request_ends_once_with_its_first_result(first: int, folder: Path) -> None:
    faults: Counter[str] = Counter()
    for seed in range(first, first + GROUP):
        faults += run(seed, folder / str(seed)).faults
    assert faults.total() > GROUP / 2, "these seeds broke next to nothing"
    assert {
        "broker killed",
        "broker wiped",
        "worker killed",
        "worker asleep",
        "worker cut off",
        "engine crashed",
        "job cancelled",
    } <= faults.keys()
    assert any(fault.startswith("coordinator") for fault in faults)


def test_a_seed_decides_everything(folder: Path) -> None:
    seed = next(seed for seed in range(SEEDS) if Plan.of(seed).fault_rate and Plan.of(seed).trouble)
    first, again = run(seed, folder / "a"), run(seed, folder / "b")
    assert (first.now, first.faults, first.admitted) == (again.now, again.faults, again.admitted)


def found_out(folder: Path) -> str:
    """What the first violation says; empty when there was none soon."""
    for seed in range(SOON):
        try:
            run(seed, folder / str(seed))
        except (ViolationError, AssertionError) as violation:
            return str(violation)
    return ""


def trusting(_self: Assignments, _worker: str, _row: int) -> bool:
    """In place of `may_answer`: results of rows that are recorded come to the ledger, too."""
    return True


def test_the_ledger_alone_keeps_the_first_result(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Assignments, "may_answer", trusting)
    assert found_out(folder) == ""


def test_a_ledger_that_takes_a_second_result_is_found_out(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Assignments, "may_answer", trusting)
    source = inspect.getsource(ledger_results)
    for rule, broken in (("state = 0 AND {", "{"), ("INSERT INTO result", "INSERT OR REPLACE INTO result")):
        assert source.count(rule) == 1
        source = source.replace(rule, broken)
    source = source.replace("SET state = 1 WHERE id = ?", "SET state = 1 WHERE id = ? AND state = 0")
    forgetful: dict[str, Any] = {"__name__": "forgetful"}
    exec(source, forgetful)
    monkeypatch.setattr(ledger_results, "record_results", forgetful["record_results"])
    assert "I3" in found_out(folder)


def test_a_watch_that_believes_every_lease_is_found_out(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Watch, "_is_over", lambda *_: False)
    assert "I8" in found_out(folder)


def test_a_coordinator_that_takes_nothing_over_is_found_out(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Controller, "claim", lambda _self, _job, rows: (list(rows), []))
    assert "I10" in found_out(folder)


def test_a_job_that_does_not_get_back_what_it_left_to_another_is_found_out(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(JobRun, "regain", lambda *_: None)
    assert "I7" in found_out(folder)


def test_a_controller_that_forgets_to_put_rows_back_is_found_out(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forgets(_self: Controller, rows: Any) -> None:
        list(rows)

    monkeypatch.setattr(Controller, "give_back", forgets)
    assert "I7" in found_out(folder)
