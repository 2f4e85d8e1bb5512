"""A dry run finds what a run finds at intake."""

from coordinator.intake.dry_run import DryRun
from coordinator.ledger.ledger import Ledger
from fleet.config import StateDir
from tests.ledgers import request, spec

REQUESTS = [
    request("a", 1),
    request("b", 2, 3, line=2),
    request("a", 4, line=3),
    request(None, error="not JSON: Expecting value at column 3", line=4),
    request("c", error="not JSON: Expecting value at column 9", line=5),
    request("c", 5, line=6),
]


def test_it_finds_the_errors_that_the_ledger_records(tmp_path) -> None:
    run = DryRun(keep_errors=True)
    run.add(REQUESTS[:2])
    run.add(REQUESTS[2:])
    with Ledger.open(StateDir(tmp_path)) as ledger:
        job = ledger.begin_job(spec())[0].id
        ledger.add_requests(job, REQUESTS)
        recorded = [f"{answer.source}: {answer.error}" for answer in ledger.answers(job) if answer.error]
    assert run.errors == recorded
    assert len(recorded) == run.failed == 4
    assert (run.requests, run.rows, run.tokens) == (6, 3, 9)


def test_a_person_reads_kinds_and_not_every_line() -> None:
    run = DryRun(keep_errors=False)
    run.add(REQUESTS)
    assert run.text().splitlines() == [
        "6 requests, 3 rows, 9 prompt tokens, 4 bad lines; nothing was run",
        "       2 x custom_id 'a' was already used at /in.jsonl:1 (first: a, /in.jsonl:3)",
        "       2 x not JSON: Expecting value at column 3 (first: no id, /in.jsonl:4)",
    ]
    assert run.errors == []


def test_one_of_a_kind_is_not_told_as_many() -> None:
    run = DryRun(keep_errors=False)
    run.add([request("a", 1)])
    assert run.text() == "1 request, 1 row, 3 prompt tokens, 0 bad lines; nothing was run"
