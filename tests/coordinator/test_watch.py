"""What the watch makes of leases: who is there, late, gone, back, or another."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from coordinator.broker.broker import Broker
from coordinator.broker.dispatch import Dispatch
from coordinator.control.controller import Controller
from coordinator.control.job_run import JobRun
from coordinator.control.member import Member, Presence
from coordinator.control.watch import MISSING_S, Watch
from coordinator.ledger.ledger import Ledger
from coordinator.scheduling.assignments import Flight
from fleet.config import LEASE_TTL_S, StateDir
from fleet.errors import BrokerError
from fleet.messages import SetCap, WorkerState
from tests.ledgers import request, spec
from tests.post import UNSEEN, Post, beat, sight


class Still:
    """A broker that is there, under an epoch."""

    epoch = "e"
    foreign = False

    def alive(self) -> bool:
        return True

    def renew_epoch(self) -> None:
        self.epoch = "renewed"


class Fleet:
    """A controller with one worker and six rows, a watch, and a clock that a test turns."""

    def __init__(self, ledger: Ledger) -> None:
        self.now = 1000.0
        self.post = Post()
        self.told: list[str] = []
        self.controller = Controller(
            ledger=ledger, dispatch=cast(Dispatch, self.post), tell=self.told.append, clock=lambda: self.now
        )
        self.member = Member(id="w", name="mini")
        self.controller.add_member(self.member)
        record = ledger.begin_job(spec())[0]
        ledger.add_requests(record.id, [request(f"r{n}", n) for n in range(1, 7)])
        self.run = JobRun(record, ledger, lambda *_, **__: (), feed=None)
        self.run.take_up()
        self.controller.add_job(self.run)
        self.broker = Still()
        self.wall = 5000.0
        self.watch = Watch(self.controller, cast(Broker, self.broker), wall=lambda: self.wall)

    def see(self, seen: Any, after_s: float = 1.0) -> None:
        """Reads the leases a while later."""
        self.now += after_s
        self.wall += after_s
        self.post.seen["w"] = seen
        self.watch.read_leases()
        self.controller.assignments.validate()

    def send(self) -> Flight:
        """Sends all rows in one flight; that."""
        rows = {row.id: row.of_job(self.run.job.id) for row in self.run.backlog.take(rows=6, tokens=10_000)}
        flight = Flight(id="w-1", worker="w", job=self.run.job.id, rows=rows)
        self.controller.assignments.send(flight)
        return flight


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    with Ledger.open(StateDir(tmp_path)) as ledger:
        yield Fleet(ledger)
        ledger.validate()


def test_a_worker_is_here_with_its_first_beat_and_takes_no_work_before(fleet: Fleet) -> None:
    assert not fleet.member.takes_work
    fleet.see(sight(beat()))
    assert (fleet.member.presence, fleet.member.takes_work, fleet.told) == (Presence.ALIVE, True, ["mini is here"])


def test_a_late_beat_makes_it_stale_and_the_next_one_alive_again(fleet: Fleet) -> None:
    fleet.see(sight(beat(), age_s=4.4))
    assert fleet.member.presence is Presence.ALIVE
    fleet.see(sight(beat(), age_s=4.6))
    assert (fleet.member.presence, fleet.member.takes_work) == (Presence.STALE, False)
    fleet.see(sight(beat()))
    assert fleet.member.presence is Presence.ALIVE


def test_a_lease_that_ran_out_is_believed_at_once(fleet: Fleet) -> None:
    fleet.see(sight(beat()))
    fleet.send()
    fleet.see(sight(beat(shards=("w-1",)), age_s=11.9))
    fleet.see(UNSEEN)
    assert fleet.member.presence is Presence.LOST
    assert (len(fleet.run.backlog), len(fleet.controller.assignments), fleet.run.retried) == (6, 0, 6)
    assert (fleet.post.purged, fleet.told[-1]) == (["w"], "mini is lost: its rows run elsewhere")
    fleet.see(UNSEEN)
    assert fleet.post.purged == ["w"], "it is lost once"


def test_one_that_comes_back_is_simply_a_worker_again(fleet: Fleet) -> None:
    fleet.see(sight(beat()))
    fleet.see(UNSEEN)
    fleet.see(sight(beat(shards=("w-1",))))
    assert (fleet.member.presence, fleet.member.takes_work, fleet.told[-1]) == (Presence.ALIVE, True, "mini is back")


def test_after_a_restart_of_the_broker_every_worker_has_time_to_come_again(fleet: Fleet) -> None:
    fleet.see(sight(beat()))
    fleet.broker.epoch = "another"
    for _ in range(int(LEASE_TTL_S)):
        fleet.see(UNSEEN)
        assert fleet.member.presence is Presence.ALIVE
    fleet.see(UNSEEN)
    assert fleet.member.presence is Presence.LOST


def test_a_broker_that_was_emptied_gets_another_epoch_and_every_worker_time_to_come_again(fleet: Fleet) -> None:
    """Workers wait for an epoch, which once only a start gave: a broker that was emptied stopped the fleet for good."""
    fleet.see(sight(beat()))
    fleet.post.emptied = True
    fleet.see(UNSEEN)
    assert (fleet.broker.epoch, fleet.member.presence) == ("renewed", Presence.ALIVE)
    fleet.post.emptied = False
    for _ in range(int(LEASE_TTL_S)):
        assert fleet.member.presence is Presence.ALIVE
        fleet.see(UNSEEN)
    fleet.see(UNSEEN)
    assert fleet.member.presence is Presence.LOST


def test_a_broker_that_does_not_answer_proves_nothing_about_workers(fleet: Fleet) -> None:
    fleet.see(sight(beat()))
    fleet.post.broken = True
    with pytest.raises(BrokerError):
        fleet.see(UNSEEN, 3.0)
    fleet.post.broken = False
    fleet.see(UNSEEN)
    assert fleet.member.presence is Presence.ALIVE


def test_leases_that_ran_out_while_the_coordinator_slept_prove_nothing(fleet: Fleet) -> None:
    fleet.see(sight(beat()))
    fleet.wall += 3600
    fleet.see(UNSEEN)
    assert fleet.member.presence is Presence.ALIVE
    fleet.see(UNSEEN, LEASE_TTL_S + 1)  # but not for ever
    assert fleet.member.presence is Presence.ALIVE, "a pause that long is a sleep again"
    for _ in range(13):
        fleet.see(UNSEEN)
    assert fleet.member.presence is Presence.LOST


def test_a_worker_that_stops_leaves_without_a_word_of_loss(fleet: Fleet) -> None:
    fleet.see(sight(beat(state=WorkerState.STOPPING)))
    fleet.see(UNSEEN)
    assert (fleet.told[-1], fleet.member.forgotten) == ("mini has left", True)


def test_another_process_of_a_worker_has_nothing_of_the_one_before(fleet: Fleet) -> None:
    fleet.see(sight(beat()))
    flight = fleet.send()
    rows = list(flight.rows)
    fleet.see(sight(beat(shards=("w-1",), running=((rows[0], 3),))))
    fleet.see(sight(beat(nonce="n2")))
    assert (len(fleet.controller.assignments), len(fleet.run.backlog)) == (0, 6)
    assert fleet.told[-1] == "mini was started anew"


def test_a_shard_still_in_the_queue_stays_with_the_new_process(fleet: Fleet) -> None:
    fleet.see(sight(beat()))
    fleet.send()
    fleet.see(sight(beat(nonce="n2"), queued=["w-1"]))
    assert len(fleet.controller.assignments) == 6


def test_a_shard_that_is_nowhere_goes_back_after_two_beats(fleet: Fleet) -> None:
    fleet.see(sight(beat()))
    fleet.send()
    fleet.see(sight(beat()))
    fleet.see(sight(beat()), MISSING_S - 0.5)
    assert len(fleet.controller.assignments) == 6
    fleet.see(sight(beat()))
    assert (len(fleet.controller.assignments), len(fleet.run.backlog)) == (0, 6)


def test_a_worker_that_rests_gives_back_what_it_has_not_taken(fleet: Fleet) -> None:
    fleet.see(sight(beat()))
    fleet.send()
    fleet.post.in_queue = {"w-1"}
    fleet.see(sight(beat(state=WorkerState.PAUSED), queued=["w-1"]))
    assert (len(fleet.controller.assignments), len(fleet.run.backlog)) == (0, 6)
    assert not fleet.member.takes_work


def test_rows_are_suspects_only_when_a_second_worker_vanishes_with_them(fleet: Fleet) -> None:
    for vanished in range(2):
        fleet.see(sight(beat(nonce=f"n{vanished}")))
        flight = fleet.send()
        first = min(flight.rows)
        fleet.see(sight(beat(nonce=f"n{vanished}", shards=("w-1",), running=((first, 3),))))
        fleet.see(UNSEEN)
        assert len(fleet.controller.faults) == vanished
        if not vanished:
            assert len(fleet.run.backlog) == 6
    (trial,) = fleet.controller.faults.trials()
    assert [row.id for row in trial] == [first]
    assert len(fleet.run.backlog) == 5


def test_a_row_that_two_workers_vanish_with_alone_is_quarantined(fleet: Fleet) -> None:
    """A prompt that panics a kernel takes the whole Mac along, which no engine's crash tells of."""
    ledger, controller = fleet.controller.ledger, fleet.controller
    first = min(row.id for row in fleet.run.backlog.take(rows=6, tokens=10_000))
    fleet.run.take_up()
    for alone in range(4):
        fleet.see(sight(beat(nonce=f"n{alone}")))
        controller.send_work()
        flight = controller.assignments.shard_of(first)
        assert flight is not None
        assert flight.exclusive is (alone >= 2), f"at {alone}"
        fleet.see(sight(beat(nonce=f"n{alone}", shards=(flight.id,), running=((first, 3),))))
        fleet.see(UNSEEN)
    assert ledger.counts(fleet.run.job.id).quarantined == 1
    assert controller.faults.quarantined == 1


def test_another_process_is_told_the_cap_that_the_one_before_had(fleet: Fleet) -> None:
    fleet.see(sight(beat()))
    fleet.member.cap = 4
    fleet.see(sight(beat()))
    assert fleet.post.orders == []
    fleet.see(sight(beat(nonce="n2")))
    assert fleet.post.orders == [("w", SetCap(rows=4))]
