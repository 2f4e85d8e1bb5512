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
from fleet.job import KeyHeader, KeyMaker, Sampling
from fleet.messages import Crashed, Shard
from tests.ledgers import spec
from tests.runner import wait_until

SYSTEMS = [[7] * 100, [8] * 70]
ROWS = 40


class Post:
    """Takes shards and gives no answer."""

    def __init__(self) -> None:
        self.shards: list[Shard] = []

    def send(self, _worker: str, shard: Shard) -> None:
        self.shards.append(shard)


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
    wait_until(lambda: controller.take_in(feed, lambda: "s") or feed.ended, within_s=5)
    wait_until(lambda: (controller.take_in(feed, lambda: "s"), feed.ended)[1], within_s=5)


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
