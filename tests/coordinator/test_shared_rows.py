"""Rows that several jobs need: one job has a row in flight, and whatever becomes of it, no other waits in vain."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.control.job_run import JobRun
from coordinator.ledger.ledger import Ledger
from coordinator.scheduling.fleet_view import Recall
from coordinator.scheduling.moves import Moves
from fleet.config import LEASE_TTL_S, StateDir
from fleet.errors import BrokerError
from fleet.messages import Beat, Crashed, Returned, WorkerState
from tests.coordinator.test_succession import READY, Coordinator, here
from tests.ledgers import request, spec
from tests.post import beat

ROWS = range(1, 5)


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Coordinator]:
    """Two workers and a job of four rows, all of them in flight at v."""
    with Ledger.open(StateDir(tmp_path)) as ledger:
        job = ledger.begin_job(spec())[0].id
        ledger.add_requests(job, [request(f"r{row}", row) for row in ROWS])
        fleet = Coordinator(ledger)
        fleet.turn(here("v"), paused("w"))
        fleet.turn(holding(fleet, "v"), paused("w"))
        assert fleet.sent_to("v") == set(ROWS)
        yield fleet
        ledger.validate()


def paused(worker: str) -> Beat:
    return beat(worker, engine=READY, state=WorkerState.PAUSED)


def holding(fleet: Coordinator, worker: str) -> Beat:
    return here(worker, *[flight.id for flight in fleet.controller.assignments.of(worker)])


def leaves_all(fleet: Coordinator, run: JobRun, *others: Beat) -> None:
    """The job sees that its rows are in flight for the first one."""
    for _ in range(2):
        fleet.turn(holding(fleet, "v"), *(others or [paused("w")]))
    assert run.left.keys() == set(ROWS)
    fleet.post.shards.clear()


def first_job(fleet: Coordinator, worker: str) -> int:
    """The job of the first shard that a worker gets."""
    for _ in range(5):
        fleet.turn(holding(fleet, worker))
    return fleet.post.shards[0].job


def test_what_an_urgent_job_left_to_one_whose_worker_is_lost_goes_out_first(fleet: Coordinator) -> None:
    urgent = fleet.add_job(*ROWS, priority=10)
    leaves_all(fleet, urgent)
    fleet.add_job(*range(100, 200), priority=5)
    for _ in range(int(LEASE_TTL_S) + 2):
        fleet.turn(send=False)
    assert first_job(fleet, "w") == urgent.job.id


def test_what_it_left_and_was_called_off_goes_out_first(fleet: Coordinator) -> None:
    urgent = fleet.add_job(*ROWS, priority=10)
    leaves_all(fleet, urgent)
    fleet.controller._sender._make_room(fleet.members[0])
    fleet.add_job(*range(100, 200), priority=5)
    assert first_job(fleet, "v") == urgent.job.id


def test_a_worker_that_has_only_the_other_jobs_folder_computes_what_came_back(fleet: Coordinator) -> None:
    fleet.members[1].refused[fleet.run.model] = "no such folder"
    other = fleet.add_job(*ROWS, model="/elsewhere/model")
    leaves_all(fleet, other, here("w"))
    fleet.turn(paused("v"), here("w"), told=(Returned(rows=tuple(ROWS), id="n-1"),))
    fleet.post.told = []
    fleet.turn(paused("v"), here("w"))
    assert {(shard.job, row.id) for shard in fleet.post.shards for row in shard.rows} == {
        (other.job.id, row) for row in ROWS
    }


def test_a_suspect_is_sent_by_no_other_job(fleet: Coordinator) -> None:
    fleet.turn(holding(fleet, "v"), paused("w"), told=(Crashed(rows=(1, 2), latest=(), reason="x", cap=2, id="n-1"),))
    fleet.post.told = []
    other = fleet.add_job(*ROWS)
    for _ in range(3):
        fleet.turn(holding(fleet, "v"), paused("w"))
    assert not [shard for shard in fleet.post.shards if shard.job == other.job.id]


def test_suspects_on_trial_are_none_any_more_when_their_job_is_cancelled(fleet: Coordinator) -> None:
    fleet.turn(holding(fleet, "v"), paused("w"), told=(Crashed(rows=(1, 2), latest=(), reason="x", cap=2, id="n-1"),))
    fleet.post.told = []
    assert any(flight.exclusive for flight in fleet.controller.assignments.of("v"))
    fleet.cancel(fleet.run)
    assert len(fleet.controller.faults._suspects) == 0
    other = fleet.add_job(*ROWS)
    for _ in range(2):
        fleet.turn(holding(fleet, "v"), paused("w"))
    assert {row.id for shard in fleet.post.shards if shard.job == other.job.id for row in shard.rows} == set(ROWS)


def test_a_broker_that_refuses_a_recall_loses_no_row(fleet: Coordinator) -> None:
    fleet.post.broken = True
    recall = Recall(rows=(3, 4), source="v", target="w")
    with pytest.raises(BrokerError):
        fleet.controller._sender._perform(fleet.run, recall, Moves())
    assert all(fleet.controller.assignments.has("v", row) for row in ROWS)
