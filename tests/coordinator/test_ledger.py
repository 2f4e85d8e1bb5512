"""The ledger as the one who works on a job meets it. Every test ends with the invariants checked."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.ledger.ledger import Ledger
from coordinator.records import Answer, Counts, NewRequest, OpenRow, Shape, Source
from fleet.config import StateDir
from fleet.errors import StorageError, UsageError
from fleet.job import Finish, JobState, RequestState, Sampling
from tests.ledgers import all_done, done, failed, request, row, spec


@pytest.fixture
def state(tmp_path: Path) -> StateDir:
    return StateDir(tmp_path / "state")


@pytest.fixture
def ledger(state: StateDir) -> Iterator[Ledger]:
    ledger = Ledger.open(state, clock=lambda: 1000.5)
    yield ledger
    ledger.validate()
    ledger.close()


@pytest.fixture
def job(ledger: Ledger) -> int:
    return ledger.begin_job(spec())[0].id


def ids(rows: list[OpenRow]) -> list[int]:
    return [opened.id for opened in rows]


def keys(ledger: Ledger, rows: list[OpenRow]) -> list[bytes]:
    return [stored.key for stored in ledger.rows(ids(rows))]


def answers(ledger: Ledger, job: int) -> list[Answer]:
    return list(ledger.answers(job))


def texts(ledger: Ledger, job: int) -> list[list[str]]:
    return [[part.text for part in answer.parts] for answer in ledger.answers(job)]


# -- intake ----------------------------------------------------------------------------------------


def test_new_rows_are_open_and_come_with_what_planning_needs(ledger: Ledger, job: int) -> None:
    opened = ledger.add_requests(job, [request("a", 1), request("b", 2)])
    assert opened == [
        OpenRow(id=1, length=3, max_tokens=8, sampling=1),
        OpenRow(id=2, length=3, max_tokens=8, sampling=1),
    ]


def test_a_stored_row_is_the_one_that_was_put_in(ledger: Ledger, job: int) -> None:
    ledger.add_requests(job, [request("a", 1, 2)])
    second, first = ledger.rows([2, 1])
    assert (first.id, first.key, first.tokens, first.max_tokens) == (1, row(1).key, row(1).tokens, 8)
    assert second.key == row(2).key


def test_a_sampling_group_survives_the_way_through_the_ledger(ledger: Ledger, job: int) -> None:
    odd = Sampling(
        temperature=0.7,
        top_p=0.9,
        seed=3,
        presence_penalty=0.5,
        repetition_penalty=1.2,
        stop=("\n", "é"),
        labels=("a", "b"),
        label_tokens=((1,), (2, 3)),
    )
    asked = request("a")
    opened = ledger.add_requests(
        job, [request("z", 5), type(asked)(custom_id="a", source=asked.source, rows=(row(1, sampling=odd),))]
    )
    assert [ledger.sampling(r.sampling) for r in opened] == [Sampling(), odd]


def test_identical_rows_are_given_out_once(ledger: Ledger, job: int) -> None:
    assert len(ledger.add_requests(job, [request("a", 1), request("b", 1), request("c", 1, 1)])) == 1
    assert ledger.add_requests(job, [request("d", 1)]) == []
    ledger.commit("w", [done(1, "same")])
    assert texts(ledger, job) == [["same"], ["same"], ["same", "same"], ["same"]]


def test_ordinals_go_on_from_chunk_to_chunk(ledger: Ledger, job: int) -> None:
    for chunk in range(3):
        ledger.add_requests(job, [request(f"{chunk}-{n}", 10 * chunk + n) for n in range(4)])
    assert [answer.ordinal for answer in answers(ledger, job)] == list(range(12))
    assert [answer.custom_id for answer in answers(ledger, job)][4:6] == ["1-0", "1-1"]


def test_an_input_error_is_an_error_at_once(ledger: Ledger, job: int) -> None:
    assert ledger.add_requests(job, [request("a", error="no prompt", line=7), request(None, error="not JSON")]) == []
    assert ledger.counts(job) == Counts(requests=2, error=2)
    first, second = answers(ledger, job)
    assert (first.state, first.error, str(first.source)) == (RequestState.ERROR, "no prompt", "/in.jsonl:7")
    assert second.custom_id is None


@pytest.mark.parametrize("chunks", [1, 2])
def test_a_custom_id_used_before_makes_an_error_that_names_the_first(ledger: Ledger, job: int, chunks: int) -> None:
    asked = [request("x", 1, line=4), request("x", 2, line=9)]
    parts = [asked] if chunks == 1 else [asked[:1], asked[1:]]
    opened = [opened for part in parts for opened in ledger.add_requests(job, part)]
    assert ids(opened) == [1]
    _, second = answers(ledger, job)
    assert (second.custom_id, second.error) == ("x", "custom_id 'x' was already used at /in.jsonl:4")
    assert ledger.counts(job) == Counts(requests=2, error=1)


def test_a_repeated_custom_id_of_a_bad_line_is_counted_once(ledger: Ledger, job: int) -> None:
    ledger.add_requests(job, [request("x", error="bad"), request("x", error="bad too"), request("x", 1)])
    assert ledger.counts(job) == Counts(requests=3, error=3)


def test_two_jobs_may_use_the_same_custom_id(ledger: Ledger, job: int) -> None:
    other = ledger.begin_job(spec("/other.jsonl"))[0].id
    ledger.add_requests(job, [request("x", 1)])
    ledger.add_requests(other, [request("x", 2)])
    assert ledger.counts(other).error == 0


def test_no_requests_change_nothing(ledger: Ledger, job: int) -> None:
    assert ledger.add_requests(job, []) == []
    assert ledger.counts(job) == Counts()


def test_text_of_any_kind_comes_back_as_it_was(ledger: Ledger, job: int) -> None:
    strange = "nul \0, quote ', {braces}, %s, \U0001f600, \u2028"
    ledger.add_requests(job, [request(strange, 1, extra='{"a": "\\u0000"}')])
    ledger.commit("w", [done(1, strange)])
    (answer,) = answers(ledger, job)
    assert (answer.custom_id, answer.parts[0].text, answer.extra) == (strange, strange, '{"a": "\\u0000"}')


def test_an_input_whose_name_is_not_unicode_can_be_recorded(ledger: Ledger, job: int) -> None:
    asked = request("a", 1)
    odd = type(asked.source)(file=b"/in-\xff.txt".decode("utf-8", "surrogateescape"), line=1)
    ledger.add_requests(job, [type(asked)(custom_id="a", source=odd, rows=asked.rows)])
    assert answers(ledger, job)[0].source.file == "/in-\ufffd.txt"


def test_inputs_whose_names_read_the_same_once_recorded_are_one(ledger: Ledger, job: int) -> None:
    rows = request("a", 1).rows
    for name, file in (("a", "/in-\udcff.txt"), ("b", "/in-\udcfe.txt"), ("c", "/in-\ufffd.txt")):
        ledger.add_requests(job, [NewRequest(custom_id=name, source=Source(file=file, line=1), rows=rows)])
    assert [answer.source.file for answer in answers(ledger, job)] == ["/in-\ufffd.txt"] * 3


# -- results ---------------------------------------------------------------------------------------


def test_a_request_ends_with_its_last_row(ledger: Ledger, job: int) -> None:
    ledger.add_requests(job, [request("a", 1, 2)])
    ledger.commit("w", [done(2)])
    assert ledger.counts(job).done == 0
    ledger.commit("w", [done(1)])
    assert ledger.counts(job) == Counts(requests=1, done=1, input_tokens=6, output_tokens=4)
    assert texts(ledger, job) == [["answer 1", "answer 2"]]


def test_the_first_result_counts_and_never_changes(ledger: Ledger, job: int) -> None:
    ledger.add_requests(job, [request("a", 1)])
    ledger.commit("w1", [done(1, "first"), done(1, "second")])
    ledger.commit("w2", [done(1, "third"), failed(1)])
    assert texts(ledger, job) == [["first"]]
    assert ledger.counts(job) == Counts(requests=1, done=1, input_tokens=3, output_tokens=2)


def test_a_result_of_an_unknown_row_is_dropped(ledger: Ledger) -> None:
    assert ledger.commit("w", [done(99)]) == []
    assert ledger.commit("w", []) == []


def test_a_failed_row_fails_its_request_with_the_reason(ledger: Ledger, job: int) -> None:
    ledger.add_requests(job, [request("a", 1, 2), request("b", 3)])
    ledger.commit("w", [done(1), failed(2, "does not fit"), done(3)])
    first, _ = answers(ledger, job)
    assert (first.state, first.error) == (RequestState.ERROR, "does not fit")
    assert ledger.counts(job) == Counts(requests=2, done=1, error=1, input_tokens=3, output_tokens=2)


def test_a_result_that_comes_after_an_error_is_dropped(ledger: Ledger, job: int) -> None:
    ledger.add_requests(job, [request("a", 1)])
    ledger.commit("w", [failed(1)])
    ledger.commit("w", [done(1)])
    assert ledger.counts(job) == Counts(requests=1, error=1)


def test_a_row_shared_by_two_jobs_ends_the_requests_of_both(ledger: Ledger, job: int) -> None:
    other = ledger.begin_job(spec("/other.jsonl"))[0].id
    assert ids(ledger.add_requests(job, [request("a", 1)])) == [1]
    assert ids(ledger.add_requests(other, [request("b", 1)])) == [1]
    ledger.commit("w", [done(1)])
    assert (ledger.counts(job).done, ledger.counts(other).done) == (1, 1)


def test_a_request_of_known_rows_ends_at_once(ledger: Ledger, job: int) -> None:
    ledger.commit("w", all_done(ledger.add_requests(job, [request("a", 1), request("b", 2)])))
    other = ledger.begin_job(spec("/other.jsonl"))[0].id
    assert keys(ledger, ledger.add_requests(other, [request("c", 2), request("d", 1, 3)])) == [row(3).key]
    assert ledger.counts(other) == Counts(requests=2, done=1, input_tokens=3, output_tokens=2)


def test_how_a_row_ended_is_kept(ledger: Ledger, job: int) -> None:
    ledger.add_requests(job, [request("a", 1), request("b", 2)])
    ledger.commit("w", [done(1, "", Finish.EMPTY), done(2, "cut", Finish.LENGTH)])
    assert [answer.parts[0].finish for answer in answers(ledger, job)] == [Finish.EMPTY, Finish.LENGTH]


# -- crashes ---------------------------------------------------------------------------------------


def test_crashes_are_counted_and_those_alone_told(ledger: Ledger, job: int) -> None:
    ledger.add_requests(job, [request("a", 1), request("b", 2)])
    assert ledger.crashed([2, 1], alone=False) == [0, 0]
    assert ledger.crashed([2], alone=True) == [1]
    assert ledger.crashed([2], alone=True) == [2]
    ledger.quarantine(2, "kills the engine")
    ledger.commit("w", [done(1), done(2, "too late")])
    _, second = answers(ledger, job)
    assert (second.state, second.error, second.parts) == (RequestState.QUARANTINED, "kills the engine", ())
    assert ledger.counts(job) == Counts(requests=2, done=1, quarantined=1, input_tokens=3, output_tokens=2)


def test_a_row_that_is_done_is_not_quarantined(ledger: Ledger, job: int) -> None:
    ledger.add_requests(job, [request("a", 1)])
    ledger.commit("w", [done(1)])
    ledger.quarantine(1, "too late")
    assert ledger.counts(job).quarantined == 0


def test_a_quarantine_without_two_crashes_alone_is_found_by_the_check(state: StateDir) -> None:
    with Ledger.open(state) as ledger:
        ledger.add_requests(ledger.begin_job(spec())[0].id, [request("a", 1)])
        ledger.quarantine(1, "a guess")
        with pytest.raises(AssertionError, match="I5"):
            ledger.validate()


# -- reduce ----------------------------------------------------------------------------------------


def test_a_long_document_ends_when_one_part_is_left(ledger: Ledger, job: int) -> None:
    ledger.add_requests(job, [request("doc", 1, 2, 3, shape=Shape.REDUCE)])
    assert ledger.commit("w", [done(1), done(3)]) == []
    (asked,) = ledger.commit("w", [done(2)])
    assert ledger.ready_to_reduce(job) == [asked]
    assert ledger.part_texts(asked) == ["answer 1", "answer 2", "answer 3"]
    assert ids(ledger.add_parts(asked, [row(11), row(12)])) == [4, 5]
    assert ledger.ready_to_reduce(job) == []
    assert ledger.commit("w", [done(4), done(5)]) == [asked]
    assert ids(ledger.add_parts(asked, [row(13)])) == [6]
    assert ledger.commit("w", [done(6, "in short")]) == []
    (answer,) = answers(ledger, job)
    assert (answer.state, [part.text for part in answer.parts]) == (RequestState.DONE, ["in short"])
    assert (answer.input_tokens, answer.output_tokens) == (18, 12)
    assert ledger.counts(job) == Counts(requests=1, done=1, input_tokens=18, output_tokens=12)


def test_a_document_fails_with_its_first_failed_part(ledger: Ledger, job: int) -> None:
    ledger.add_requests(job, [request("doc", 1, 2, shape=Shape.REDUCE)])
    assert ledger.commit("w", [failed(2, "no room")]) == []
    (answer,) = answers(ledger, job)
    assert (answer.state, answer.error) == (RequestState.ERROR, "no room")
    assert ledger.commit("w", [done(1)]) == []


def test_a_level_that_is_known_already_makes_the_document_ready_again(ledger: Ledger, job: int) -> None:
    ledger.commit("w", all_done(ledger.add_requests(job, [request("a", 11), request("b", 12)])))
    (asked,) = ledger.commit("w", all_done(ledger.add_requests(job, [request("doc", 1, 2, shape=Shape.REDUCE)])))
    assert ledger.add_parts(asked, [row(11), row(12)]) == []
    assert ledger.ready_to_reduce(job) == [asked]


def test_a_document_whose_parts_are_all_known_is_ready_when_it_comes(ledger: Ledger, job: int) -> None:
    ledger.commit("w", all_done(ledger.add_requests(job, [request("a", 1), request("b", 2)])))
    assert ledger.add_requests(job, [request("doc", 1, 2, shape=Shape.REDUCE)]) == []
    assert len(ledger.ready_to_reduce(job)) == 1


# -- jobs and reruns -------------------------------------------------------------------------------


def test_the_same_spec_finds_the_same_job(ledger: Ledger, job: int) -> None:
    again, known = ledger.begin_job(spec())
    assert (again.id, known) == (job, True)
    other, known = ledger.begin_job(spec(options='{"seed": 1}'))
    assert (other.id, known) == (job + 1, False)
    assert (other.created, other.state, other.spec) == (1000.5, JobState.RUNNING, spec(options='{"seed": 1}'))


def test_a_salt_makes_a_new_job_that_the_plain_command_takes_up(ledger: Ledger, job: int) -> None:
    fresh, known = ledger.begin_job(spec(), salt="s1")
    assert (fresh.id, fresh.salt, known) == (job + 1, "s1", False)
    assert ledger.begin_job(spec(), salt="s1") == (fresh, True)
    assert ledger.begin_job(spec())[0] == fresh


def test_an_ended_job_runs_again(ledger: Ledger, job: int) -> None:
    ledger.end_job(job, JobState.FINISHED)
    assert ledger.job(job).record.state is JobState.FINISHED
    assert ledger.begin_job(spec())[0].state is JobState.RUNNING


def test_a_rerun_opens_what_failed_but_not_input_errors(ledger: Ledger, job: int) -> None:
    ledger.add_requests(job, [request("a", 1), request("b", 2), request("c", 3), request("bad", error="no prompt")])
    ledger.finish_intake(job, "sig")
    ledger.crashed([3], alone=True)
    ledger.crashed([3], alone=True)
    ledger.quarantine(3, "kills")
    ledger.commit("w", [done(1), failed(2)])
    record, _ = ledger.begin_job(spec())
    assert (record.intake_complete, record.signature) == (True, "sig")
    assert ledger.counts(job) == Counts(requests=4, done=1, error=1, input_tokens=3, output_tokens=2)
    assert [ids(rows) for rows in ledger.open_rows(job)] == [[2, 3]]
    assert ledger.crashed([3], alone=True) == [1]
    assert [answer.error for answer in answers(ledger, job)] == [None, None, None, "no prompt"]


def test_a_rerun_ends_a_failed_request_whose_row_another_job_has_computed(ledger: Ledger, job: int) -> None:
    ledger.add_requests(job, [request("a", 1)])
    ledger.commit("w", [failed(1)])
    other = ledger.begin_job(spec("/other.jsonl"))[0].id
    ledger.commit("w", all_done(ledger.add_requests(other, [request("b", 1)])))
    assert ledger.counts(job) == Counts(requests=1, error=1)
    ledger.begin_job(spec())
    assert ledger.counts(job) == Counts(requests=1, done=1, input_tokens=3, output_tokens=2)


def test_a_row_that_failed_in_this_run_is_not_tried_again_for_an_equal_one(ledger: Ledger, job: int) -> None:
    ledger.add_requests(job, [request("a", 1)])
    ledger.commit("w", [failed(1, "no room")])
    assert ledger.add_requests(job, [request("b", 1)]) == []
    assert [answer.error for answer in answers(ledger, job)] == ["no room", "no room"]


def test_taking_the_input_in_again_keeps_rows_and_results(ledger: Ledger, job: int) -> None:
    ledger.add_requests(job, [request("a", 1), request("b", 2)])
    ledger.commit("w", [done(1)])
    ledger.reset_intake(job)
    assert ledger.counts(job) == Counts()
    opened = ledger.add_requests(job, [request("b", 2), request("a", 1), request("c", 3)])
    assert keys(ledger, opened) == [row(2).key, row(3).key]
    assert [answer.custom_id for answer in answers(ledger, job)] == ["b", "a", "c"]
    assert ledger.counts(job).done == 1


def test_open_rows_come_once_in_input_order_in_lists(ledger: Ledger, job: int) -> None:
    ledger.add_requests(job, [request(f"r{n}", n, (n + 1) % 10) for n in range(10)] + [request("x", 3, 3, 3)])
    ledger.commit("w", [done(1)])
    lists = [ids(rows) for rows in ledger.open_rows(job, batch=4)]
    assert [number for rows in lists for number in rows] == list(range(2, 11))
    assert max(map(len, lists)) <= 4


def test_rows_of_a_request_that_failed_are_not_worth_computing(ledger: Ledger, job: int) -> None:
    ledger.add_requests(job, [request("doc", 1, 2, shape=Shape.REDUCE), request("b", 3)])
    ledger.commit("w", [failed(1)])
    assert [ids(rows) for rows in ledger.open_rows(job)] == [[3]]


def test_rows_added_while_open_rows_are_read_are_given_once(ledger: Ledger, job: int) -> None:
    ledger.add_requests(job, [request(f"r{n}", n) for n in range(6)])
    seen: list[int] = []
    for rows in ledger.open_rows(job, batch=2):
        seen += ids(rows)
        if len(seen) == 2:
            seen += ids(ledger.add_requests(job, [request("late", 100)]))
    assert sorted(seen) == [1, 2, 3, 4, 5, 6, 7]


def test_an_unknown_job_is_an_error_that_lists_the_known(ledger: Ledger, job: int) -> None:
    with pytest.raises(UsageError, match=f"no job 77: known are {job}"):
        ledger.job(77)


def test_openai_lines_are_known_by_their_url(ledger: Ledger, job: int) -> None:
    ledger.add_requests(job, [request(None, error="not JSON")])
    assert not ledger.is_openai(job)
    ledger.add_requests(job, [request("a", 1, url="/v1/completions")])
    assert ledger.is_openai(job)


# -- across processes ------------------------------------------------------------------------------


def test_what_is_recorded_is_there_after_reopening(state: StateDir) -> None:
    with Ledger.open(state) as ledger:
        job = ledger.begin_job(spec())[0].id
        ledger.add_requests(job, [request("a", 1), request("b", 2)])
        ledger.commit("w", [done(1)])
    with Ledger.open(state) as ledger:
        assert ledger.counts(job).done == 1
        assert ids(ledger.add_requests(job, [request("c", 3)])) == [3]
        ledger.validate()


def test_another_may_read_while_one_writes(ledger: Ledger, job: int, state: StateDir) -> None:
    ledger.add_requests(job, [request("a", 1)])
    with Ledger.read(state) as reader:
        assert reader.counts(job) == Counts(requests=1)
        ledger.commit("w", [done(1)])
        assert texts(reader, job) == [["answer 1"]]
        with pytest.raises(StorageError, match="cannot be opened or written"):
            reader.end_job(job, JobState.FINISHED)


def test_answers_are_of_one_moment_while_the_ledger_goes_on(ledger: Ledger, job: int) -> None:
    ledger.add_requests(job, [request("a", 1), request("b", 2)])
    reading = ledger.answers(job)
    assert next(reading).state is RequestState.OPEN
    ledger.commit("w", [done(1), done(2)])
    assert next(reading).state is RequestState.OPEN
    reading.close()


def test_a_job_can_be_cancelled_beside_its_run(ledger: Ledger, job: int, state: StateDir) -> None:
    assert not ledger.cancel_requested(job)
    assert Ledger.cancel(state, job).state is JobState.CANCELLED
    assert Ledger.cancel(state, job).state is JobState.CANCELLED
    assert ledger.cancel_requested(job)
    assert ledger.job(job).record.state is JobState.CANCELLED
    assert ledger.begin_job(spec())[0].state is JobState.RUNNING
    assert not ledger.cancel_requested(job)


def test_a_finished_job_cannot_be_cancelled(ledger: Ledger, job: int, state: StateDir) -> None:
    ledger.end_job(job, JobState.FINISHED)
    with pytest.raises(UsageError, match="has finished"):
        Ledger.cancel(state, job)


# -- cleaning --------------------------------------------------------------------------------------


def test_cleaning_forgets_a_job_but_not_what_another_uses(ledger: Ledger, job: int) -> None:
    other = ledger.begin_job(spec("/other.jsonl"))[0].id
    ledger.commit("w", all_done(ledger.add_requests(job, [request("a", 1), request("b", 2)])))
    ledger.add_requests(other, [request("c", 2), request("d", 3)])
    cleaned = ledger.clean([job])
    assert (cleaned.jobs, cleaned.requests, cleaned.rows) == (1, 2, 1)
    assert [status.record.id for status in ledger.jobs()] == [other]
    assert texts(ledger, other) == [["answer 2"], []]
    third = ledger.begin_job(spec("/third.jsonl"))[0].id
    assert len(ledger.add_requests(third, [request("e", 1)])) == 1


def test_cleaning_keeps_what_a_job_that_reads_its_input_again_does_not_name_yet(ledger: Ledger, job: int) -> None:
    # Interrupted just after its input was to be read anew, a job lost every recorded answer to the clean of another.
    other = ledger.begin_job(spec("/other.jsonl"))[0].id
    ledger.commit("w", all_done(ledger.add_requests(other, [request("c", 2), request("d", 3)])))
    ledger.finish_intake(other, "")
    ledger.add_requests(job, [request("a", 1)])
    ledger.reset_intake(other)
    ledger.add_requests(other, [request("c", 2)])
    ledger.reset_intake(other)
    cleaned = ledger.clean([job])
    assert (cleaned.rows, cleaned.needed_by) == (0, (other,))
    assert ledger.add_requests(other, [request("c", 2), request("d", 3)]) == [], "both are known"
    ledger.finish_intake(other, "")
    third = ledger.begin_job(spec("/third.jsonl"))[0].id
    assert ledger.clean([third]).rows == 1
    ledger.validate()


def test_a_job_that_reads_its_input_for_the_first_time_keeps_no_rows_of_others(ledger: Ledger, job: int) -> None:
    other = ledger.begin_job(spec("/other.jsonl"))[0].id
    ledger.reset_intake(other)
    ledger.add_requests(job, [request("a", 1)])
    assert ledger.clean([job]).rows == 1


def test_cleaning_gives_the_disk_back(ledger: Ledger, job: int, state: StateDir) -> None:
    asked = request("a")
    big = row(1, length=500_000)
    ledger.add_requests(job, [type(asked)(custom_id="a", source=asked.source, rows=(big,))])
    assert ledger.clean([job]).freed_bytes > 0
    assert state.ledger.stat().st_size < 500_000  # of the 2 MB that the row took; an empty table or index takes a page
