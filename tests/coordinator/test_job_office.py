"""Jobs of a fleet from order to output, without workers: what the office asks of the controller and of the ledger."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from coordinator.broker.dispatch import Dispatch
from coordinator.control.controller import Controller
from coordinator.control.front_desk import Order
from coordinator.control.job_office import OPEN, JobOffice, Stage, Submitted
from coordinator.control.member import Member, Presence
from coordinator.intake.intake import IntakeOptions
from coordinator.ledger.ledger import Ledger
from fleet.config import StateDir
from fleet.errors import FleetError, UsageError
from fleet.job import JobState, Task
from fleet.messages import Cancel, Finished, Returned
from tests.bare_model import bare_model
from tests.ledgers import done, failed
from tests.post import Post
from tests.runner import read_lines, wait_until, write_prompts


class Place:
    """A ledger, a controller with one worker that answers when it is told to, and the office."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.model = folder / "model"
        if not self.model.exists():
            bare_model(self.model)
        self.state = StateDir(folder / "state")
        self.ledger = Ledger.open(self.state)
        self.post = Post()
        self.told: list[str] = []
        self.controller = Controller(ledger=self.ledger, dispatch=cast(Dispatch, self.post), tell=self.told.append)
        self.member = Member(id="w", presence=Presence.ALIVE)
        self.controller.add_member(self.member)
        self.office = JobOffice(self.controller, self.ledger, self.state)

    def order(self, name: str, rows: int = 5, *, priority: int = 0, fresh: bool = False, **options: Any) -> Order:
        backlog = self.folder / f"{name}.jsonl"
        if not backlog.exists():
            write_prompts(backlog, [f"{name} {n}" for n in range(rows)])
        given = IntakeOptions(**{"task": Task.GENERATE, "model": str(self.model), "max_tokens": 8, **options})
        output = str(self.folder / f"{name}.out.jsonl")
        return Order(options=given, inputs=(str(backlog),), output=output, priority=priority, fresh=fresh)

    def job(self, number: int) -> Submitted:
        return next(job for job in self.office.jobs if job.record.id == number)

    def until(self, number: int, stage: Stage) -> Submitted:
        """Turns until the job is there."""

        def there() -> bool:
            self.office.turn()
            return self.job(number).stage is stage

        wait_until(there, within_s=20, story=f"job {number} {stage}")
        return self.job(number)

    def answer(self) -> None:
        """The worker answers everything that is sent until nothing more is."""
        while self.controller.send_work():
            rows = [row.id for shard in self.post.shards for row in shard.rows]
            self.post.told = [Finished(rows=tuple(map(done, rows)))]
            self.post.shards = []
            self.controller.absorb()
            self.post.told = []


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path)
    yield place
    place.ledger.validate()
    place.ledger.close()


def run_to_end(place: Place, number: int) -> None:
    run = place.until(number, Stage.RUNNING).run
    assert run is not None
    wait_until(lambda: (place.office.turn(), run.read)[1])
    place.answer()
    place.until(number, Stage.FINISHED)


def test_an_order_is_read_worked_on_and_written(place: Place) -> None:
    number = place.office.submit(place.order("a"))
    assert place.job(number).stage is Stage.QUEUED
    run_to_end(place, number)
    assert len(read_lines(place.folder / "a.out.jsonl")) == 5
    assert place.ledger.job(number).record.state is JobState.FINISHED
    assert place.told[-1] == f"job {number} is done: 5 answered"
    assert number not in place.controller.runs


def test_what_is_ignored_in_the_input_is_told_once(place: Place) -> None:
    (place.folder / "odd.jsonl").write_text('{"prompt": "a colour", "favourite": 1, "model": "other"}\n')
    number = place.office.submit(place.order("odd"))
    run_to_end(place, number)
    assert sum("other" in text or "model" in text for text in place.told if text.startswith(f"job {number}: ")) == 1


def test_a_document_that_fails_with_one_part_leaves_no_row_with_any_worker(place: Place) -> None:
    text = json.dumps({"text": "The senate met and the house met. " * 600})
    (place.folder / "doc.jsonl").write_text(text + "\n")
    number = place.office.submit(place.order("doc", task=Task.SUMMARIZE))
    run_in(place, number)
    place.controller.send_work()
    rows = [row.id for shard in place.post.shards for row in shard.rows]
    assert len(rows) > 2
    place.post.told = [Finished(rows=(failed(rows[0]),))]
    place.controller.absorb()
    place.post.told = []
    place.until(number, Stage.FINISHED)
    assert len(place.controller.assignments) == 0
    assert [sorted(message.rows) for _, message in place.post.orders if isinstance(message, Cancel)] == [
        sorted(rows[1:])
    ]


def test_an_equal_order_is_the_job_that_is_there_already(place: Place) -> None:
    number = place.office.submit(place.order("a"))
    assert place.office.submit(place.order("a")) == number
    run_to_end(place, number)
    assert place.office.submit(place.order("a")) == number, "and the same is taken up again"
    run_to_end(place, number)
    assert place.post.shards == [], "with nothing to compute"


def test_a_fresh_order_is_another_job(place: Place) -> None:
    first = place.office.submit(place.order("a"))
    assert place.office.submit(place.order("a", fresh=True)) != first


@pytest.mark.parametrize("broken", ["model", "input"])
def test_a_job_that_cannot_be_read_fails_with_the_sentence(place: Place, broken: str) -> None:
    order = place.order("a", model=str(place.folder / "nowhere")) if broken == "model" else place.order("a", rows=0)
    number = place.office.submit(order)
    other = place.office.submit(place.order("b"))
    failed = place.until(number, Stage.FAILED)
    missing, empty = "on the coordinator's Mac: no model folder", "nothing to do: a.jsonl has"
    assert (missing if broken == "model" else empty) in failed.error
    assert str(place.folder / "a.jsonl") not in failed.error
    record = place.ledger.job(number).record
    assert (record.state, record.problem) == (JobState.FAILED, failed.error)
    run_to_end(place, other)


def test_an_order_that_can_never_be_written_is_refused_at_once(place: Place) -> None:
    order = place.order("a")
    with pytest.raises(FleetError, match="does not exist"):
        place.office.submit(Order(options=order.options, inputs=order.inputs, output="/nowhere/at/all.jsonl"))
    with pytest.raises(UsageError, match="standard input"):
        place.office.submit(Order(options=order.options, inputs=("-",), output=order.output))


def test_a_cancelled_job_writes_what_it_has_and_its_rows_are_called_off(place: Place) -> None:
    number = place.office.submit(place.order("a"))
    run = place.until(number, Stage.RUNNING).run
    assert run is not None
    wait_until(lambda: (place.office.turn(), run.read)[1])
    place.controller.send_work()
    rows = [row.id for shard in place.post.shards for row in shard.rows]
    place.post.told = [Finished(rows=(done(rows[0]),))]
    place.controller.absorb()
    place.post.told = []
    place.office.cancel(number)
    assert [sorted(message.rows) for _, message in place.post.orders if isinstance(message, Cancel)] == [
        sorted(rows[1:])
    ]
    assert len(place.controller.assignments) == 0
    place.until(number, Stage.CANCELLED)
    assert len(read_lines(place.folder / "a.out.jsonl")) == 1
    with pytest.raises(UsageError, match="nothing to cancel"):
        place.office.cancel(number)


def test_rows_that_another_job_needs_go_over_to_it(place: Place) -> None:
    first = place.office.submit(place.order("a"))
    run_in(place, first)
    place.controller.send_work()
    second = place.office.submit(Order(**{**fields(place.order("a")), "output": str(place.folder / "b.jsonl")}))
    run_in(place, second)
    place.controller.send_work()
    assert len(place.post.shards) == len({row.id for shard in place.post.shards for row in shard.rows}) // 5
    place.office.cancel(first)
    assert len(place.controller.runs[second].backlog) == 5
    place.answer()
    place.until(second, Stage.FINISHED)


def fields(order: Order) -> dict[str, Any]:
    return {name: getattr(order, name) for name in ("options", "inputs", "output", "priority", "fresh")}


def run_in(place: Place, number: int) -> None:
    run = place.until(number, Stage.RUNNING).run
    assert run is not None
    wait_until(lambda: (place.office.turn(), run.read)[1])


def test_a_model_no_worker_can_load_fails_the_job_and_one_that_some_can_does_not(place: Place) -> None:
    other = Member(id="v", presence=Presence.ALIVE)
    place.controller.add_member(other)
    number = place.office.submit(place.order("a"))
    run_in(place, number)
    for worker, ends in (("w", False), ("v", True)):
        place.controller.send_work()
        rows = tuple(row for flight in place.controller.assignments.of(worker) for row in flight.rows)
        place.controller._returned(place.controller.members[worker], Returned(rows=rows, reason="too large"))
        place.controller.assignments.validate()
        assert (number not in place.controller.runs) is ends, worker
    assert place.until(number, Stage.FAILED).error == "on v: too large"


def test_jobs_wait_in_the_ledger_while_many_are_open_and_the_urgent_one_does_not(place: Place) -> None:
    numbers = [place.office.submit(place.order(f"j{n}")) for n in range(OPEN + 2)]
    for number in numbers[:OPEN]:
        run_in(place, number)
    place.office.turn()
    assert [place.job(number).stage for number in numbers[OPEN:]] == [Stage.QUEUED] * 2
    urgent = place.office.submit(place.order("urgent", priority=1))
    place.until(urgent, Stage.RUNNING)


def test_another_coordinator_takes_up_what_was_submitted_and_no_more(place: Place) -> None:
    number = place.office.submit(place.order("a"))
    run_in(place, number)
    mine = place.ledger.begin_job(place.ledger.job(number).record.spec.__class__(**spec_fields(place, number)))[0]
    again = JobOffice(place.controller, place.ledger, place.state)
    again.take_up()
    assert [job.record.id for job in again.jobs] == [number]
    assert mine.id != number


def spec_fields(place: Place, number: int) -> dict[str, Any]:
    spec = place.ledger.job(number).record.spec
    return {name: getattr(spec, name) for name in ("task", "model", "model_hash", "inputs", "options")} | {
        "output": "/other.jsonl",
        "options": json.dumps({}),
    }


def test_a_job_fails_with_a_sentence_that_is_no_utf8(place: Place) -> None:
    number = place.office.submit(place.order("a", model="org/\udcff"))
    assert "org/\\udcff" in place.until(number, Stage.FAILED).error
    assert "org/\\udcff" in place.ledger.job(number).record.problem
