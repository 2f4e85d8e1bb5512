"""Ids that intake makes give way to ids that the input names."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.intake.dry_run import DryRun
from coordinator.intake.formats import Record
from coordinator.intake.options import IntakeOptions
from coordinator.intake.requests import parse
from coordinator.ledger.ledger import Ledger
from coordinator.records import NewRequest, Source
from fleet.config import StateDir
from fleet.job import Task
from tests.ledgers import request, spec


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger.open(StateDir(tmp_path / "state")) as ledger:
        yield ledger


def made(custom_id: str, *rows: int, line: int, error: str | None = None) -> NewRequest:
    return request(custom_id, *rows, line=line, error=error, made_id=True)


def stored(ledger: Ledger, *chunks: list[NewRequest]) -> list[tuple[str | None, bool]]:
    """(custom_id, whether it is an error) of each request, added in these chunks."""
    job = ledger.begin_job(spec())[0].id
    for chunk in chunks:
        ledger.add_requests(job, chunk)
    answers = [(answer.custom_id, answer.error is not None) for answer in ledger.answers(job)]
    ledger.validate()
    return answers


@pytest.mark.parametrize("chunks", [1, 2])
def test_a_line_named_like_a_later_one_without_an_id_is_no_error(ledger: Ledger, chunks: int) -> None:
    # The line without an id was an error, though nothing was wrong with it.
    asked = [request("row-2", 1), made("row-2", 2, line=2)]
    found = stored(ledger, *([asked] if chunks == 1 else [asked[:1], asked[1:]]))
    assert found == [("row-2", False), ("row-2-2", False)]


@pytest.mark.parametrize("chunks", [1, 2])
def test_a_line_named_like_an_earlier_one_without_an_id_takes_its_id(ledger: Ledger, chunks: int) -> None:
    asked = [made("row-1", 1, line=1), request("row-1-2", 2, line=2), request("row-1", 3, line=3)]
    found = stored(ledger, *([asked] if chunks == 1 else [asked[:2], asked[2:]]))
    assert found == [("row-1-3", False), ("row-1-2", False), ("row-1", False)]


def test_named_twice_it_is_an_error_all_the_same(ledger: Ledger) -> None:
    asked = [made("row-1", 1, line=1), request("row-1", 2, line=2), request("row-1", 3, line=3)]
    assert stored(ledger, asked) == [("row-1-2", False), ("row-1", False), ("row-1", True)]
    assert ledger.counts(1).error == 1


def test_a_bad_line_gives_way_too_and_is_counted_once(ledger: Ledger) -> None:
    assert stored(ledger, [request("row-2", 1), made("row-2", line=2, error="bad")]) == [
        ("row-2", False),
        ("row-2-2", True),
    ]
    assert ledger.counts(1).error == 1


def test_after_a_reset_what_was_made_before_counts_no_more(ledger: Ledger) -> None:
    job = ledger.begin_job(spec())[0].id
    ledger.add_requests(job, [made("row-1", 1, line=1)])
    ledger.reset_intake(job)
    ledger.add_requests(job, [request("row-1", 1), request("row-1", 2, line=2)])
    assert ledger.counts(job).error == 1


def test_a_dry_run_finds_the_same() -> None:
    run = DryRun(keep_errors=True)
    run.add([made("row-1", 1, line=1), request("row-1", 2), request("row-4", 3), made("row-4", 4, line=4)])
    run.add([request("row-1", 5)])
    assert run.failed == 1


@pytest.mark.parametrize(
    ("value", "name", "is_made"),
    [
        ({"prompt": "x"}, "", True),
        ({"prompt": "x", "id": None}, "", True),
        ({"prompt": ""}, "", True),
        ({"prompt": "x", "id": "a"}, "", False),
        ({"text": "x"}, "file.txt", False),
        ({"custom_id": "c", "method": "POST", "url": "/v1/completions", "body": {"prompt": "x"}}, "", False),
        ([1], "", False),
    ],
)
def test_only_a_line_that_names_no_id_has_a_made_one(value: object, name: str, is_made: bool) -> None:
    record = Record(source=Source(file="in", line=3), value=value, name=name)
    raw = parse(record, 3, IntakeOptions(task=Task.GENERATE, model="m"), Counter())
    assert (raw.made_id, raw.custom_id == "row-3") == (is_made, is_made)
