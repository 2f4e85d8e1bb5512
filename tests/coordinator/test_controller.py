"""What the controller sends: every row once, by prefix where rows share one."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from coordinator.controller import Controller
from coordinator.feed import Feed
from coordinator.ledger import Ledger
from coordinator.member import Member
from coordinator.records import NewRequest, NewRow, Source
from fleet.config import StateDir
from fleet.errors import BrokerError
from fleet.job import KeyHeader, KeyMaker, Sampling
from fleet.messages import Crashed, Message, Shard
from tests.ledgers import spec
from tests.runner import wait_until

SYSTEMS = [[7] * 100, [8] * 70]
ROWS = 40


class Post:
    """Takes shards and gives no answer but the messages put in `told`, again and again."""

    def __init__(self) -> None:
        self.shards: list[Shard] = []
        self.told: list[Message] = []
        self.broken = False

    def send(self, _worker: str, shard: Shard) -> None:
        if self.broken:
            raise BrokerError("the broker does not answer")
        self.shards.append(shard)

    def results(self, _worker: str, _count: int) -> list[tuple[str, Message]]:
        return [(f"{n}-0", message) for n, message in enumerate(self.told)]

    def delete(self, _worker: str, _entries: Sequence[str]) -> None:
        """Deletes nothing, like a broker that lost the call."""


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


Make = Callable[..., Controller]


@pytest.fixture
def make(ledger: Ledger) -> Make:
    def controller(**options: Any) -> Controller:
        job = ledger.begin_job(spec())[0]
        members = [Member(id="w")]
        return Controller(job, ledger=ledger, dispatch=Post(), members=members, reduce=lambda *_: (), **options)  # type: ignore[arg-type]

    return controller


def take_in(controller: Controller) -> None:
    feed = Feed(iter([chunk()]))
    wait_until(lambda: controller.take_in(feed, "s") or feed.ended, within_s=5)
    wait_until(lambda: (controller.take_in(feed, "s"), feed.ended)[1], within_s=5)


def sent(controller: Controller) -> list[Shard]:
    while controller.send_work():
        pass
    shards: list[Shard] = controller.dispatch.shards  # type: ignore[attr-defined]
    controller.assignments.validate()
    return shards


def prompts_of(shards: Sequence[Shard]) -> list[bytes]:
    return sorted(shard.prefix + row.tokens for shard in shards for row in shard.rows)


def test_every_row_leaves_once_and_rows_of_a_system_prompt_leave_without_it(make: Make) -> None:
    controller = make()
    take_in(controller)
    shards = sent(controller)
    assert prompts_of(shards) == sorted(map(prompt, range(ROWS)))
    assert {shard.prefix for shard in shards} == {packed(SYSTEMS[0]), packed(SYSTEMS[1]), b""}
    assert all(row.tokens for shard in shards for row in shard.rows)
    assert len({shard.id for shard in shards}) == len(shards)


def test_a_job_taken_up_again_knows_its_prefixes_from_the_ledger(make: Make) -> None:
    take_in(make())
    controller = make()
    controller.take_up()
    shards = sent(controller)
    assert prompts_of(shards) == sorted(map(prompt, range(ROWS)))
    assert {shard.prefix for shard in shards} == {packed(SYSTEMS[0]), packed(SYSTEMS[1]), b""}


def test_without_sharing_prompts_leave_whole(make: Make) -> None:
    controller = make(share_prefixes=False)
    take_in(controller)
    shards = sent(controller)
    assert {shard.prefix for shard in shards} == {b""}
    assert set(prompts_of(shards)) <= set(map(prompt, range(ROWS)))


def test_suspects_of_a_crash_leave_whole_and_in_one_shard_a_trial(make: Make) -> None:
    controller = make()
    take_in(controller)
    before = len(sent(controller))
    rows = tuple(row for flight in controller.assignments.of("w") for row in flight.rows)[:9]
    crash = Crashed(rows=rows, latest=rows[-1:], reason="signal", cap=8)
    controller.faults.crashed(controller.members["w"], crash)
    trials = sent(controller)[before:]
    assert [(len(shard.rows), shard.exclusive, shard.prefix) for shard in trials] == [
        (1, True, b""),
        (4, True, b""),
        (4, True, b""),
    ]


def test_rows_that_no_prefix_shortens_weigh_more_in_the_plan(make: Make) -> None:
    shared, whole = make(), make(share_prefixes=False)
    take_in(shared)
    controller_pool = shared._pool()
    assert controller_pool.computed_tokens < 0.6 * controller_pool.input_tokens
    assert whole._pool().computed_share == 1


def test_a_crash_told_twice_counts_once(make: Make, ledger: Ledger) -> None:
    """A worker tells its unread reports again to a wiped broker: the same death must not make two."""
    controller = make()
    take_in(controller)
    sent(controller)
    row = next(row for flight in controller.assignments.of("w") for row in flight.rows)
    controller.dispatch.told = [Crashed(rows=(row,), latest=(row,), reason="signal 9", cap=8, id="n-1")]  # type: ignore[attr-defined]
    for _ in range(3):
        controller.absorb()
        sent(controller)
    assert controller.faults.crashes == 1
    assert controller.faults.quarantined == 0
    controller.dispatch.told = [Crashed(rows=(row,), latest=(row,), reason="signal 9", cap=8, id="n-2")]  # type: ignore[attr-defined]
    controller.absorb()
    assert controller.faults.quarantined == 1
    ledger.validate()


def test_rows_of_a_send_that_failed_are_all_in_flight_and_so_come_back(make: Make) -> None:
    """Rows leave the pool a cut at a time and go out a prefix at a time: a broker that fails in between kept them."""
    controller = make()
    take_in(controller)
    controller.dispatch.broken = True  # type: ignore[attr-defined]
    with pytest.raises(BrokerError):
        controller.send_work()
    controller.assignments.validate()
    assert len(controller.assignments) + len(controller.backlog) == ROWS
