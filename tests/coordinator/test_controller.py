"""What the controller sends: every row once, by prefix where rows share one."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from coordinator.broker.dispatch import Dispatch
from coordinator.control.controller import Controller
from coordinator.control.job_run import JobRun
from coordinator.control.member import HALVE_AT, Member, Presence
from coordinator.intake.feed import Feed
from coordinator.ledger.ledger import Ledger
from coordinator.records import NewRequest, NewRow, Source
from fleet.config import StateDir
from fleet.errors import BrokerError
from fleet.job import KeyHeader, KeyMaker, Sampling
from fleet.messages import Cancel, Crashed, Finished, Shard
from tests.ledgers import done, spec
from tests.post import Post, beat
from tests.runner import wait_until

SYSTEMS = [[7] * 100, [8] * 70]
ROWS = 40


def packed(tokens: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(tokens)}I", *tokens)


def prompt(number: int) -> bytes:
    """Two system prompts in turn, and rows that share nothing."""
    system = [*SYSTEMS, [1000 + number] * 90][number % 3]
    return packed([*system, *range(number, number + 1 + number % 5)])


def chunk() -> list[NewRequest]:
    maker = KeyMaker(KeyHeader(model_hash="h", tokenizer_hash="t", sampling=Sampling(), max_tokens=8))
    prompts = [prompt(number) for number in range(ROWS)]
    rows = [NewRow(key=maker.key(each), tokens=each, max_tokens=8, sampling=Sampling()) for each in prompts]
    return [
        NewRequest(custom_id=f"r{number}", source=Source(file="in", line=number + 1), rows=(row,))
        for number, row in enumerate(rows)
    ]


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger.open(StateDir(tmp_path / "state")) as ledger:
        yield ledger


class Work:
    """A controller with one worker and one job, whose input is the chunk or what the ledger has."""

    def __init__(self, ledger: Ledger, *, lasting: bool = False, **options: Any) -> None:
        self.post = Post()
        self.controller = Controller(ledger=ledger, dispatch=cast(Dispatch, self.post), lasting=lasting)
        self.member = Member(id="w", local=True)
        self.controller.add_member(self.member)
        self.ledger = ledger
        job = ledger.begin_job(spec())[0]
        feed = Feed(iter([chunk()])) if not job.intake_complete else None
        self.run = JobRun(job, ledger, lambda *_, **__: (), feed=feed, signature="s", **options)
        self.controller.add_job(self.run)

    def take_in(self) -> Work:
        wait_until(lambda: (self.run.take_in(), self.run.read)[1])
        return self

    def sent(self) -> list[Shard]:
        while self.controller.send_work():
            pass
        self.controller.assignments.validate()
        return self.post.shards


def prompts_of(shards: Sequence[Shard]) -> list[bytes]:
    return sorted(shard.prefix + row.tokens for shard in shards for row in shard.rows)


def test_every_row_leaves_once_and_rows_of_a_system_prompt_leave_without_it(ledger: Ledger) -> None:
    shards = Work(ledger).take_in().sent()
    assert prompts_of(shards) == sorted(map(prompt, range(ROWS)))
    assert {shard.prefix for shard in shards} == {packed(SYSTEMS[0]), packed(SYSTEMS[1]), b""}
    assert all(row.tokens for shard in shards for row in shard.rows)
    assert len({shard.id for shard in shards}) == len(shards)


def test_a_job_taken_up_again_knows_its_prefixes_from_the_ledger(ledger: Ledger) -> None:
    Work(ledger).take_in()
    work = Work(ledger)
    work.run.take_up()
    shards = work.sent()
    assert prompts_of(shards) == sorted(map(prompt, range(ROWS)))
    assert {shard.prefix for shard in shards} == {packed(SYSTEMS[0]), packed(SYSTEMS[1]), b""}


def test_without_sharing_prompts_leave_whole(ledger: Ledger) -> None:
    shards = Work(ledger, share_prefixes=False).take_in().sent()
    assert {shard.prefix for shard in shards} == {b""}
    assert set(prompts_of(shards)) <= set(map(prompt, range(ROWS)))


def test_suspects_of_a_crash_leave_whole_and_in_one_shard_a_trial(ledger: Ledger) -> None:
    work = Work(ledger).take_in()
    controller = work.controller
    before = len(work.sent())
    rows = tuple(row for flight in controller.assignments.of("w") for row in flight.rows)[:9]
    crash = Crashed(rows=rows, latest=rows[-1:], reason="signal", cap=8)
    controller.faults.crashed(work.member, crash)
    trials = work.sent()[before:]
    # each goes in front of the one before: the row that began last is tried first
    assert [(len(shard.rows), shard.exclusive, shard.prefix) for shard in trials] == [
        (4, True, b""),
        (4, True, b""),
        (1, True, b""),
    ]


def test_rows_that_no_prefix_shortens_weigh_more_in_the_plan(ledger: Ledger) -> None:
    shared = Work(ledger).take_in().run.pool()
    whole = Work(ledger, share_prefixes=False).run.pool()
    assert shared.computed_tokens < 0.6 * shared.input_tokens
    assert whole.computed_share == 1


def test_a_crash_told_twice_counts_once(ledger: Ledger) -> None:
    """A worker tells its unread reports again to a wiped broker: the same death must not make two."""
    work = Work(ledger).take_in()
    work.sent()
    controller = work.controller
    row = next(row for flight in controller.assignments.of("w") for row in flight.rows)
    work.post.told = [Crashed(rows=(row,), latest=(row,), reason="signal 9", cap=8, id="n-1")]
    for _ in range(3):
        controller.absorb()
        work.sent()
    assert controller.faults.crashes == 1
    assert controller.faults.quarantined == 0
    work.post.told = [Crashed(rows=(row,), latest=(row,), reason="signal 9", cap=8, id="n-2")]
    controller.absorb()
    assert controller.faults.quarantined == 1
    ledger.validate()


def test_rows_of_a_send_that_failed_are_all_in_flight_and_so_come_back(ledger: Ledger) -> None:
    """Rows leave the pool a cut at a time and go out a prefix at a time: a broker that fails in between kept them."""
    work = Work(ledger).take_in()
    controller, work.post.broken = work.controller, True
    with pytest.raises(BrokerError):
        controller.send_work()
    controller.assignments.validate()
    assert len(controller.assignments) + len(work.run.backlog) == ROWS


def test_what_a_worker_computed_for_one_coordinator_counts_for_the_next(ledger: Ledger) -> None:
    first = Work(ledger, lasting=True).take_in()
    rows = [row.id for shard in first.sent() for row in shard.rows]
    assert rows
    second = Work(ledger, lasting=True)
    second.run.take_up()
    second.post.told = [Finished(rows=(done(rows[0]), done(99_999)))]
    second.controller.absorb()
    assert second.run.counts().done == 1
    assert rows[0] not in [row.id for shard in second.sent() for row in shard.rows]


def test_a_worker_whose_engine_crashes_again_and_again_works_only_when_there_is_no_other(ledger: Ledger) -> None:
    work = Work(ledger)
    roster, other = work.controller.roster, Member(id="v", local=True)
    work.controller.add_member(other)
    for _ in range(2 * HALVE_AT):
        work.member.unexplained_crash()
    assert roster.takers() == [other]
    other.lost()
    assert roster.takers() == [work.member]
    other.presence = Presence.ALIVE
    work.member.left()
    assert roster.takers() == [work.member, other]


def test_suspects_are_tried_on_another_worker_and_what_they_survive_counts_against_the_first(ledger: Ledger) -> None:
    """A broken Mac was given its own suspects again and again: 33 healthy rows were quarantined on it."""
    work = Work(ledger).take_in()
    controller = work.controller
    work.sent()
    rows = tuple(row for flight in controller.assignments.of("w") for row in flight.rows)[:3]
    controller.add_member(Member(id="v", local=True))
    for crash in range(1, HALVE_AT + 1):
        controller.faults.crashed(work.member, Crashed(rows=rows, latest=(), reason="signal", cap=8))
        controller.send_work()
        tried = [flight for flight in controller.assignments.of("v") if flight.exclusive]
        assert sorted(row for flight in tried for row in flight.rows) == sorted(rows)
        controller._commit(controller.members["v"], [done(row) for row in rows])
        assert (work.member.unexplained, work.member.halvings) == ((crash, 0) if crash < HALVE_AT else (0, 1))
        rows = tuple(row for flight in controller.assignments.of("w") for row in flight.rows)[:3]
    assert controller.members["v"].unexplained == 0


def test_trials_go_ahead_of_what_waits_with_the_worker(ledger: Ledger) -> None:
    work = Work(ledger).take_in()
    controller = work.controller
    work.sent()
    rows = tuple(row for flight in controller.assignments.of("w") for row in flight.rows)[:4]
    controller.faults.crashed(work.member, Crashed(rows=rows, latest=(), reason="signal", cap=8))
    sent = controller._sender._trials()
    assert [(shard.exclusive, ahead) for _, shard, ahead in sent] == [(True, True)] * 2


def test_a_worker_with_crashes_that_are_not_cleared_up_gets_no_more_rows_to_crash_with(ledger: Ledger) -> None:
    work = Work(ledger).take_in()
    controller = work.controller
    work.sent()
    controller.add_member(Member(id="v", local=True))
    for _ in range(HALVE_AT):
        row = next(row for flight in controller.assignments.of("w") for row in flight.rows)
        controller.faults.crashed(work.member, Crashed(rows=(row,), latest=(row,), reason="signal", cap=8))
    controller.give_back(controller.assignments.release_worker("w"))
    assert work.member.takes_work
    controller.send_work()
    assert not controller.assignments.of("w")
    assert controller.assignments.of("v")


def test_rows_that_come_back_stand_in_their_new_queue_in_the_order_they_came(ledger: Ledger) -> None:
    """Each shard was put in front of the one before, so that what came back first was computed last."""
    work = Work(ledger).take_in()
    controller = work.controller
    work.sent()
    lost = [row for flight in controller.assignments.of("w") for row in flight.rows]
    controller.add_member(Member(id="v", local=True))
    front: list[list[int]] = []
    send = work.post.send
    work.post.send = lambda worker, shard, ahead=False: (  # type: ignore[method-assign]
        front.insert(0 if ahead else len(front), [row.id for row in shard.rows]),
        send(worker, shard),
    )[1]
    controller.lose(work.member)
    controller.send_work()
    first = front[0]
    assert len(front) > 1
    assert set(first) <= set(lost[: 2 * len(first)])


def test_rows_that_come_back_run_before_those_that_wait_with_an_agent(ledger: Ledger) -> None:
    """They were first in the queue, of which an agent takes no more while a batch's worth waits with it."""
    work = Work(ledger).take_in()
    controller = work.controller
    work.sent()
    held, queued, *_ = controller.assignments.of("w")
    row, *waiting = held.rows
    work.member.beat = beat(shards=(held.id,), running=((row, 3),))
    controller.give_back(controller.assignments.release_shard(queued.id))
    back, retried = set(queued.rows), work.run.retried
    work.post.shards.clear()
    told: list[set[int]] = []
    control = work.post.control
    work.post.control = lambda worker, message: (  # type: ignore[method-assign]
        told.append({row.id for shard in work.post.shards for row in shard.rows} & back),
        control(worker, message),
    )[1]
    controller.send_work()
    controller.assignments.validate()
    assert work.post.orders == [("w", Cancel(rows=tuple(waiting)))]
    assert told == [back], "the agent would take what is first in its queue when it is told"
    assert list(held.rows) == [row], "what runs goes on"
    assert back <= {row.id for shard in work.post.shards for row in shard.rows}
    assert work.run.retried == retried, "what waited was not begun with"
    assert len(controller.assignments) + len(work.run.backlog) == ROWS
