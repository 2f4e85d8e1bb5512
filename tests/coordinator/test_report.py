"""The end report: figures of a run, failures grouped by kind."""

import json
from dataclasses import replace

import pytest

from coordinator.control.local_run import RunResult
from coordinator.records import Answer, Counts, JobRecord, JobSpec, Part, Shape, Source
from coordinator.screens import failures, report
from fleet.job import Finish, JobState, RequestState, Task
from fleet.messages import Figures

RESULT = RunResult(
    counts=Counts(requests=100, done=97, error=2, quarantined=1, input_tokens=40_000, output_tokens=6_000),
    figures=Figures(
        output_tokens=5_000,
        prompt_tokens=30_000,
        padding_tokens=10_000,
        steps=200,
        step_rows=2_400,
        step_cap=3_200,
        peak_bytes=1_500_000_000,
    ),
    computed=90,
    crashes=0,
    seconds=50.0,
    cap=16,
    single="",
)


def answer(ordinal: int, error: str | None = None, *, parts: int = 0) -> Answer:
    part = Part(text="t", finish=Finish.STOP, input_tokens=1, output_tokens=1)
    return Answer(
        ordinal=ordinal,
        custom_id=f"id-{ordinal}",
        source=Source(file="in.jsonl", line=ordinal + 1),
        state=RequestState.DONE if error is None else RequestState.ERROR,
        error=error,
        extra="",
        url="",
        shape=Shape.EACH,
        parts=(part,) * parts,
    )


def made(result: RunResult = RESULT, seen: report.Survey | None = None) -> report.Summary:
    return report.make(7, result, seen or report.Survey(rows=97), output="/out.jsonl", errors="/out.jsonl.errors.jsonl")


def test_rates_are_over_the_runs_wall_clock() -> None:
    assert (made().output_tps, made().prompt_tps) == (100.0, 600.0)


def test_padding_is_a_share_of_all_positions_computed() -> None:
    assert made().padding == 0.25


def test_mean_batch_and_occupancy_are_over_decode_steps() -> None:
    assert (made().mean_batch, made().occupancy) == (12.0, 0.75)


def test_prompt_tokens_that_were_not_computed_again_are_told_when_there_are_some() -> None:
    assert "shared" not in report.text(made())
    shared = made(replace(RESULT, figures=replace(RESULT.figures, shared_tokens=12_345)))
    assert "40,000 in, 6,000 out; 12,345 in shared prefixes, not computed again" in report.text(shared)
    assert report.as_dict(shared)["shared_tokens"] == 12_345


def test_rows_that_thought_until_max_tokens_are_counted() -> None:
    thought = Part(text="", finish=Finish.THINKING, input_tokens=1, output_tokens=1, reasoning="Hm")
    seen = report.survey([replace(answer(0), parts=(thought, thought)), answer(1, parts=1)])
    assert (seen.rows, seen.thinking) == (3, 2)
    assert "2 still thinking at --max-tokens, without an answer" in report.text(made(seen=seen))
    assert "thinking" not in report.text(made())


def test_rows_not_computed_here_were_reused() -> None:
    assert (made().computed_rows, made().reused_rows) == (90, 7)


def test_a_run_that_computed_nothing_has_no_speed_and_no_batch() -> None:
    known = made(replace(RESULT, figures=Figures(), computed=0, seconds=0.0))
    assert (known.output_tps, known.mean_batch, known.occupancy, known.reused_rows) == (0.0, None, None, 97)
    lines = report.text(known).splitlines()
    assert not [line for line in lines if line.startswith(("speed", "batch"))]


def test_failures_that_differ_in_figures_and_quoted_words_are_one_kind() -> None:
    answers = [answer(n, f"prompt of {1000 + n} tokens is over 'model-{n}' by 1,0{n}0") for n in range(3)]
    seen = report.survey([*answers, answer(3, "text: nothing to summarize"), answer(4, parts=2)])
    assert [(kind.count, kind.example, kind.source) for kind in seen.failures] == [
        (3, "id-0", "in.jsonl:1"),
        (1, "id-3", "in.jsonl:4"),
    ]
    assert seen.failures[0].reason == "prompt of 1000 tokens is over 'model-0' by 1,000"
    assert seen.rows == 2


def test_lists_of_quoted_words_do_not_split_a_kind() -> None:
    lists = ['"a"', '"a", "b"', '"a", "b", ...']
    seen = report.survey(answer(n, f'found the fields {list}, expected "x"') for n, list in enumerate(lists))
    assert [kind.count for kind in seen.failures] == [3]


def test_kinds_are_bounded_however_broken_the_backlog_is() -> None:
    words = ["".join(chr(ord("a") + (n // 26**k) % 26) for k in range(4)) for n in range(failures.MAX_KINDS + 50)]
    seen = report.survey(answer(n, f"reason {word}") for n, word in enumerate(words))
    assert len(seen.failures) == failures.MAX_KINDS + 1
    assert (seen.failures[0].reason, seen.failures[0].count) == (failures.OTHER, 50)


def test_a_person_reads_every_figure_and_where_the_files_are() -> None:
    seen = report.survey([*(answer(n, "over the context") for n in range(3)), answer(3, parts=97)])
    assert report.text(made(seen=seen)).splitlines() == [
        "requests  97 of 100 done, 3 failed",
        "       3 x over the context (first: id-0, in.jsonl:1)",
        "tokens    40,000 in, 6,000 out",
        "rows      90 computed, 7 reused",
        "speed     100 tok/s out, 600 tok/s in, 0:50 with the loading of the model",
        "batch     12.0 rows on average, 75% of the cap, 25.0% padding",
        "memory    1.50 GB at most in the engine",
        "output    /out.jsonl",
        "errors    /out.jsonl.errors.jsonl",
    ]


def test_many_kinds_of_failure_end_in_one_line() -> None:
    seen = report.survey(answer(n, f"kind {'x' * (n + 1)}") for n in range(failures.SHOWN_KINDS + 3))
    assert "       3 x 3 more kinds of reason" in report.text(made(seen=seen)).splitlines()


def test_an_id_less_failure_is_told_by_its_line() -> None:
    broken = replace(answer(4, "not JSON"), custom_id=None)
    assert "(first: no id, in.jsonl:5)" in report.text(made(seen=report.survey([broken])))


def test_a_single_row_model_a_crash_and_a_cancelled_job_are_said() -> None:
    counts = replace(RESULT.counts, done=50)
    lines = report.text(made(replace(RESULT, counts=counts, single="its caches cannot merge", crashes=2))).splitlines()
    assert lines[0] == "requests  50 of 100 done, 3 failed, 47 left open"
    assert "          one row at a time: its caches cannot merge" in lines
    assert any(line.endswith("reused, 2 engine crashes") for line in lines)


def test_stdout_as_output_is_said_in_words() -> None:
    plain = replace(made(), output="-", errors=None)
    assert report.text(plain).splitlines()[-1] == "output    written to stdout"


def test_json_has_the_same_figures() -> None:
    seen = report.survey([answer(0, "over the context")])
    back = json.loads(json.dumps(report.as_dict(made(seen=seen))))
    assert (back["requests"], back["done"], back["failed"], back["padding"]) == (100, 97, 3, 0.25)
    assert back["failures"] == [
        {"count": 1, "reason": "over the context", "example": "id-0", "source": "in.jsonl:1"},
    ]


def job(output: str) -> JobRecord:
    spec = JobSpec(task=Task.GENERATE, model="m", model_hash="00", inputs=("in.jsonl",), output=output, options="{}")
    return JobRecord(id=7, spec=spec, state=JobState.RUNNING, created=0.0, intake_complete=True, signature="")


@pytest.mark.parametrize("to_stderr", [False, True])
def test_it_is_printed_where_the_answers_are_not(capsys: pytest.CaptureFixture[str], to_stderr: bool) -> None:
    report.Report(job("/out.jsonl"), RESULT, [answer(0, parts=1)]).show(as_json=False, to_stderr=to_stderr)
    captured = capsys.readouterr()
    shown, other = (captured.err, captured.out) if to_stderr else (captured.out, captured.err)
    assert shown.splitlines()[-2:] == ["output    /out.jsonl", "errors    /out.jsonl.errors.jsonl"]
    assert other == ""


def test_it_is_one_line_of_json_when_asked(capsys: pytest.CaptureFixture[str]) -> None:
    report.Report(job("-"), RESULT, []).show(as_json=True, to_stderr=True)
    assert json.loads(capsys.readouterr().err)["errors"] is None


def test_texts_that_were_embedded_are_told_as_texts_and_not_as_answers() -> None:
    figures = Figures(prompt_tokens=30_000, padding_tokens=10_000, prefill_s=20.0)
    result = replace(RESULT, figures=figures, counts=Counts(requests=100, done=100, input_tokens=40_000))
    summary = report.make(7, result, report.Survey(rows=100), output="/v.npy", errors=None, embeds=True)
    assert report.text(summary).splitlines() == [
        "requests  100 of 100 done, 0 failed",
        "tokens    40,000",
        "rows      90 computed, 10 reused",
        "speed     2 texts/s, 600 tok/s, 0:50 with the loading of the model, 25.0% padding",
        "output    /v.npy",
    ]


@pytest.mark.parametrize(
    ("planned_s", "told"),
    [
        (40.0, "plan      planned 0:40, took 0:50 (+25%)"),
        (0.01, "plan      planned 0:00, took 0:50"),
        (None, None),
    ],
)
def test_the_report_says_how_far_a_plan_was_off(planned_s: float | None, told: str | None) -> None:
    lines = report.text(made(replace(RESULT, planned_s=planned_s))).splitlines()
    assert [line for line in lines if line.startswith("plan")] == ([told] if told else [])
