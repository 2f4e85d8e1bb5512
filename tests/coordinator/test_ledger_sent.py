"""What the ledger knows of rows on their way: which are open, who needs them, who was sent them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.ledger.ledger import Ledger
from fleet.config import StateDir
from tests.ledgers import done, failed, request, spec


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger.open(StateDir(tmp_path)) as ledger:
        yield ledger
        ledger.validate()


@pytest.fixture
def job(ledger: Ledger) -> int:
    return ledger.begin_job(spec())[0].id


def test_rows_that_have_ended_are_not_given_out(ledger: Ledger, job: int) -> None:
    ledger.add_requests(job, [request("a", 1), request("b", 2), request("c", 3)])
    ledger.commit("w", [done(1), failed(3)])
    assert [stored.id for stored in ledger.rows([1, 2, 3])] == [2]


def test_who_was_sent_an_open_row_in_which_shard_is_known_to_the_next_coordinator(ledger: Ledger, job: int) -> None:
    ledger.add_requests(job, [request("a", 1), request("b", 2), request("c", 3)])
    ledger.note_sent([(1, "w", "w-1"), (1, "v", "v-1"), (2, "w", "w-1"), (3, "w", "w-1")])
    ledger.note_sent([(1, "w", "w-2")])
    ledger.commit("w", [done(2), failed(3)])
    assert sorted(ledger.sent_rows()) == [(1, "v", "v-1"), (1, "w", "w-2")]


def test_a_row_is_needed_by_a_running_job_that_has_an_open_request_of_it(
    ledger: Ledger, job: int, tmp_path: Path
) -> None:
    ledger.add_requests(job, [request("a", 1), request("b", 2), request("c", 3)])
    other = ledger.begin_job(spec("/other.jsonl"))[0].id
    ledger.add_requests(other, [request("x", 2), request("y", 3)])
    assert ledger.unneeded([1, 2, 3, 77]) == [77]
    Ledger.cancel(StateDir(tmp_path), job)
    ledger.commit("w", [done(3)])
    assert ledger.unneeded([1, 2, 3]) == [1, 3]


def test_while_a_job_reads_its_input_again_it_may_need_any_row(ledger: Ledger, job: int, tmp_path: Path) -> None:
    ledger.add_requests(job, [request("a", 1)])
    ledger.reset_intake(job)
    assert ledger.unneeded([1]) == []
    Ledger.cancel(StateDir(tmp_path), job)
    assert ledger.unneeded([1]) == [1]


def test_workers_that_vanish_with_a_row_are_counted_until_the_row_is_tried_again(ledger: Ledger, job: int) -> None:
    ledger.add_requests(job, [request("a", 1), request("b", 2)])
    assert ledger.vanished([1]) == {1: 1}
    assert ledger.vanished([1, 2]) == {1: 2, 2: 1}
    ledger.commit("w", [failed(1)])
    ledger.begin_job(spec())
    assert ledger.vanished([1]) == {1: 1}
