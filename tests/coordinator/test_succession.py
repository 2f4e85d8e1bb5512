"""A coordinator that takes over from one that was killed: what workers still have stays theirs, the rest is sent."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from coordinator.broker.broker import Broker
from coordinator.broker.dispatch import Dispatch
from coordinator.control.controller import Controller
from coordinator.control.job_run import JobRun
from coordinator.control.member import Member
from coordinator.control.watch import Watch
from coordinator.ledger.ledger import Ledger
from fleet.config import LEASE_TTL_S, StateDir
from fleet.messages import Beat, Crashed, Finished, Message, Ready, Returned
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

    def __init__(self, ledger: Ledger) -> None:
        self.now = 1000.0
        self.post = Post()
        self.controller = Controller(
            ledger=ledger, dispatch=cast(Dispatch, self.post), clock=lambda: self.now, lasting=True
        )
        self.members = [Member(id=worker) for worker in "vw"]
        for member in self.members:
            self.controller.add_member(member)
        self.run = JobRun(
            ledger.begin_job(spec())[0], ledger, lambda *_, **__: (), feed=None, claim=self.controller.claim
        )
        self.run.take_up()
        self.controller.add_job(self.run)
        self.watch = Watch(self.controller, cast(Broker, Still()), wall=lambda: self.now)

    def turn(self, *beats: Beat, told: tuple[Message, ...] = (), after_s: float = 1.0) -> None:
        """Reads the leases and the reports a while later, and sends."""
        self.now += after_s
        queued = [shard.id for shard in self.post.shards]
        self.post.seen = {
            said.worker: sight(said, queued=[id for id in queued if id.startswith(said.worker)]) for said in beats
        }
        self.post.told = list(told)
        self.watch.read_leases()
        self.controller.absorb()
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


def test_a_job_that_is_dropped_meanwhile_leaves_its_rows_to_one_that_needs_them(
    second: Coordinator, ledger: Ledger
) -> None:
    other = ledger.begin_job(spec(output="/other.jsonl"))[0]
    ledger.add_requests(other.id, [request("x", 9)])
    run = JobRun(other, ledger, lambda *_, **__: (), feed=None, claim=second.controller.claim)
    run.take_up()
    second.controller.add_job(run)
    assert len(run.backlog) == 0, "it waits for w to tell"
    second.controller.drop_job(second.run.job.id)
    second.turn(here("v"))
    assert second.sent() == {9}


def test_a_worker_that_was_removed_is_not_waited_for(second: Coordinator) -> None:
    second.controller.remove_member(second.members[1])
    second.turn(here("v", "v-1", "v-2"))
    assert second.sent() >= TO_W
