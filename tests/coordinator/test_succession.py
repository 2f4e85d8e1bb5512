"""A coordinator that takes over from one that was killed: what workers still have stays theirs, the rest is sent."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from coordinator.broker.broker import Broker
from coordinator.broker.dispatch import Dispatch
from coordinator.control.controller import Controller
from coordinator.control.drain import LOOK_S, Drain
from coordinator.control.job_run import JobRun
from coordinator.control.member import Member
from coordinator.control.watch import Watch
from coordinator.ledger.ledger import Ledger
from fleet.config import LEASE_TTL_S, StateDir
from fleet.job import JobState
from fleet.messages import Beat, Cancel, Crashed, Finished, Message, Ready, Returned
from tests.ledgers import done, request, spec
from tests.post import Post, beat, sight

ROWS = 24
#: What the coordinator before had sent, by shard.
SENT = {"v-1": {1, 2, 3, 4}, "v-2": {5, 6, 7, 8}, "w-1": {9, 10, 11, 12}, "w-2": {13, 14, 15, 16}}
TO_V, TO_W = SENT["v-1"] | SENT["v-2"], SENT["w-1"] | SENT["w-2"]
READY = Ready(model_hash="ab", cap=2, kv_bytes=1, budget_bytes=1 << 20, context_tokens=4096)


class Still:
    """A broker that is there."""

    epoch = "e"
    foreign = False

    def alive(self) -> bool:
        return True


class Coordinator:
    """The one that comes next, in a fleet of two workers with a job."""

    def __init__(self, ledger: Ledger, *, work: bool = True) -> None:
        """With `work` it has begun with its job."""
        self.now = 1000.0
        self.post = Post()
        self.controller = Controller(
            ledger=ledger, dispatch=cast(Dispatch, self.post), clock=lambda: self.now, lasting=True
        )
        self.members = [Member(id=worker) for worker in "vw"]
        for member in self.members:
            self.controller.add_member(member)
        self.run = JobRun(ledger.job(1).record, ledger, lambda *_, **__: (), feed=None, claim=self.controller.claim)
        self.watch = Watch(self.controller, cast(Broker, Still()), wall=lambda: self.now)
        if work:
            self.begin()

    def begin(self) -> None:
        self.run.take_up()
        self.controller.add_job(self.run)

    def claim_first(self, rows: int) -> None:
        """The job's first rows, as they come in by and by while its input is read."""
        first = [row for some in self.controller.ledger.open_rows(self.run.job.id) for row in some][:rows]
        self.controller.claim(self.run.job.id, first)

    def add_job(self, *rows: int, priority: int = 0, model: str = "/models/tiny") -> JobRun:
        """Another job that needs these rows."""
        ledger = self.controller.ledger
        wanted = replace(spec(output=f"/other-{len(ledger.jobs())}.jsonl"), model=model)
        job = ledger.begin_job(wanted, priority=priority)[0]
        ledger.add_requests(job.id, [request(f"x{row}", row) for row in rows])
        run = JobRun(job, ledger, lambda *_, **__: (), feed=None, claim=self.controller.claim)
        run.take_up()
        self.controller.add_job(run)
        return run

    def cancel(self, run: JobRun) -> None:
        self.controller.ledger.end_job(run.job.id, JobState.CANCELLED)
        self.controller.drop_job(run.job.id)

    def turn(self, *beats: Beat, told: tuple[Message, ...] = (), after_s: float = 1.0, send: bool = True) -> None:
        """Reads the leases and the reports a while later, and sends."""
        self.now += after_s
        queued = [shard.id for shard in self.post.shards]
        self.post.seen = {
            said.worker: sight(said, queued=[id for id in queued if id.startswith(said.worker)]) for said in beats
        }
        self.post.told = list(told)
        self.watch.read_leases()
        self.controller.absorb()
        self.controller.take_over()
        if send:
            self.controller.send_work()
        self.controller.assignments.validate()

    def sent(self) -> set[int]:
        return self.sent_to("v") | self.sent_to("w")

    def sent_to(self, worker: str) -> set[int]:
        shards = [shard for shard in self.post.shards if shard.id.startswith(worker)]
        return {row.id for shard in shards for row in shard.rows}


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger.open(StateDir(tmp_path)) as ledger:
        job = ledger.begin_job(spec())[0].id
        ledger.add_requests(job, [request(f"r{n}", n, line=n) for n in range(1, ROWS + 1)])
        ledger.note_sent([(row, shard[0], shard) for shard, rows in SENT.items() for row in rows])
        yield ledger
        ledger.validate()


@pytest.fixture
def second(ledger: Ledger) -> Coordinator:
    return Coordinator(ledger)


def here(worker: str, *shards: str, nonce: str = "n1", running: tuple[int, ...] = ()) -> Beat:
    return beat(worker, nonce=nonce, engine=READY, shards=shards, running=tuple((row, 3) for row in running))


def test_what_a_worker_still_has_is_its_own_and_what_waited_in_its_queue_is_sent_again(second: Coordinator) -> None:
    beats = here("v", "v-1", running=(1, 2)), here("w", "w-2")
    second.turn(*beats)
    assert second.controller.assignments.flights["v-1"].rows.keys() == SENT["v-1"]
    assert second.controller.assignments.flights["w-2"].rows.keys() == SENT["w-2"]
    for _ in range(10):
        second.turn(*beats)
    assert not (SENT["v-1"] | SENT["w-2"]) & second.sent()
    assert SENT["v-2"] | SENT["w-1"] <= second.sent()
    assert second.run.retried == 0, "what waited in a queue was not begun with"


def test_nothing_that_a_worker_may_have_is_sent_before_it_was_heard(second: Coordinator) -> None:
    for _ in range(5):
        second.turn(here("v", "v-1", "v-2"))
    assert second.sent() == set(range(17, ROWS + 1))


def test_what_a_worker_had_that_never_comes_back_is_sent_elsewhere(second: Coordinator) -> None:
    for _ in range(int(LEASE_TTL_S) + 2):
        second.turn(here("v", "v-1", "v-2"))
    assert second.sent_to("v") >= TO_W
    assert second.run.retried == len(TO_W)


def test_another_process_of_a_worker_has_nothing_of_the_one_before(second: Coordinator) -> None:
    for _ in range(2):
        second.turn(here("v", nonce="another"), here("w", "w-1", "w-2"))
    assert second.sent() >= TO_V
    assert not second.sent() & TO_W


def test_reports_count_before_their_worker_was_heard(second: Coordinator, ledger: Ledger) -> None:
    second.turn(told=(Finished(rows=(done(1),)), Returned(rows=(2,), id="n-1")))
    assert ledger.counts(second.run.job.id).done == second.run.computed == 1
    second.post.told = []
    second.turn(here("w"), here("v", "v-1", running=(3, 4)))
    assert 2 in second.sent()
    assert second.controller.assignments.flights["v-1"].rows.keys() == {3, 4}


def test_a_crash_that_happened_meanwhile_makes_suspects(second: Coordinator) -> None:
    second.turn(told=(Crashed(rows=(1, 2), latest=(), reason="signal 6", cap=2, id="n-1"),))
    assert len(second.controller.faults) == 2


def test_a_job_that_is_dropped_meanwhile_leaves_its_rows_to_one_that_needs_them(second: Coordinator) -> None:
    run = second.add_job(9)
    assert len(run.backlog) == 0, "it waits for w to tell"
    second.cancel(second.run)
    second.turn(here("v"))
    assert second.sent() == set(), "w may still have it"
    second.turn(here("v"), here("w", "w-2"))
    assert second.sent() == {9}


def test_a_worker_keeps_what_another_job_needs_of_a_shard_whose_job_is_dropped(second: Coordinator) -> None:
    run = second.add_job(9)
    second.cancel(second.run)
    second.turn(here("v"), here("w", "w-1", running=(9,)))
    assert {id: (flight.job, *flight.rows) for id, flight in second.controller.assignments.flights.items()} == {
        "w-1": (run.job.id, 9)
    }
    assert second.post.orders == [("w", Cancel(rows=(10, 11, 12)))]


def test_rows_of_a_job_that_was_cancelled_before_the_restart_are_called_off(ledger: Ledger) -> None:
    ledger.end_job(1, JobState.CANCELLED)
    second = Coordinator(ledger, work=False)
    second.turn(here("v", "v-1", running=(1, 2)), here("w"))
    second.turn(here("v", "v-1", running=(1, 2)), here("w"))
    assert second.post.orders == [("v", Cancel(rows=(1, 2, 3, 4)))], "once"


def test_rows_of_a_job_that_has_not_been_opened_yet_go_on(ledger: Ledger) -> None:
    second = Coordinator(ledger, work=False)
    for _ in range(3):
        second.turn(here("v", "v-1", running=(1, 2)), here("w"))
    assert second.post.orders == []
    second.begin()
    second.turn(here("v", "v-1", running=(1, 2)), here("w"))
    assert second.controller.assignments.flights["v-1"].rows.keys() == SENT["v-1"]


def test_rows_that_came_back_to_a_job_that_is_dropped_are_anothers(second: Coordinator) -> None:
    run = second.add_job(1, 17)
    for _ in range(3):
        second.turn(here("v", "v-1", running=(1, 2)), here("w"))
    assert not len(run.backlog)
    for _ in range(int(LEASE_TTL_S) + 2):
        second.turn(send=False)
    assert not len(second.controller.assignments), "all workers are lost, all rows in the pool"
    second.cancel(second.run)
    second.turn(here("v"))
    second.turn(here("v"))
    assert {row.id for shard in second.post.shards if shard.job == run.job.id for row in shard.rows} == {1, 17}


def test_a_shard_with_rows_of_two_jobs_is_ones_and_its_rows_survive_it(ledger: Ledger) -> None:
    second = Coordinator(ledger, work=False)
    second.claim_first(1)
    run = second.add_job(2, 3)
    second.begin()
    beats = here("v", "v-1", running=(1,)), here("w")
    second.turn(*beats)
    flight = second.controller.assignments.flights["v-1"]
    assert flight.rows.keys() == SENT["v-1"]
    assert {row.job for row in flight.rows.values()} == {flight.job}
    first = next(each for each in second.controller.runs.values() if each.job.id == flight.job)
    second.cancel(first)
    assert "v-1" not in second.controller.assignments.flights
    second.turn(*beats)
    other = run if first is not run else second.run
    theirs = {row.id for shard in second.post.shards if shard.job == other.job.id for row in shard.rows}
    assert {2, 3} <= theirs


def test_a_fleet_that_goes_down_right_away_waits_for_what_its_workers_still_compute(second: Coordinator) -> None:
    drain = Drain(second.controller)
    drain.begin()
    assert not drain.done(), "nobody was heard yet"
    second.turn(here("v", "v-1", "v-2", running=(1, 2)), here("w"), send=False)
    time.sleep(LOOK_S)
    assert not drain.done()
    assert ("v", Cancel(rows=(3, 4, 5, 6, 7, 8))) in second.post.orders
    second.turn(here("v"), here("w"), told=(Finished(rows=(done(1), done(2))),), send=False)
    assert drain.done()
    assert second.post.shards == []


def test_it_waits_for_jobs_that_it_has_not_opened_as_well(ledger: Ledger) -> None:
    second = Coordinator(ledger, work=False)
    drain = Drain(second.controller)
    drain.begin()
    second.turn(here("v", "v-1", running=(1, 2)), here("w"), send=False)
    assert not drain.done()
    assert second.post.orders == [("v", Cancel(rows=(3, 4)))]
    second.turn(here("v"), here("w"), told=(Finished(rows=(done(1), done(2))),), send=False)
    assert drain.done()
    assert ledger.counts(1).done == 2


def test_a_worker_that_was_removed_is_not_waited_for(second: Coordinator) -> None:
    second.controller.remove_member(second.members[1])
    second.turn(here("v", "v-1", "v-2"))
    assert second.sent() >= TO_W
