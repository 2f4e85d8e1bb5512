"""What a run did, for its end: as a few lines for a person, as a dict for `--json`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from coordinator.outputs.results import STDOUT, errors_file
from coordinator.records import Answer, JobRecord
from coordinator.screens import failures
from coordinator.screens.failures import Failure, Failures
from coordinator.screens.progress import duration
from fleet.job import Finish, RequestState, Task

#: Plans from this on are compared as a share, seconds: before it the loading of the model, which no plan has, is more.
SHARE_FROM_S = 30.0

if TYPE_CHECKING:
    from coordinator.control.local_run import RunResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """What the end report needs of a job's answers."""

    #: most frequent first
    failures: tuple[Failure, ...] = ()
    #: rows that the answered requests are made of, equal ones counted each time
    rows: int = 0
    #: those of them that reached max_tokens before their answer began
    thinking: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """A run and its job, in figures."""

    job: int
    requests: int
    done: int
    failed: int
    #: without a terminal state: only in a job that was cancelled
    open: int
    failures: tuple[Failure, ...]
    #: tokens of all answered requests, whenever they were computed
    input_tokens: int
    output_tokens: int
    #: prompt tokens that this run took from a shared prefix, computed already
    shared_tokens: int
    #: rows computed in this run
    computed_rows: int
    #: rows that were known, from an earlier run or from an equal row
    reused_rows: int
    #: rows that reached max_tokens before their answer began
    thinking_rows: int
    crashes: int
    #: wall clock of this run, model loading included
    seconds: float
    #: what a plan gave for it before, without model loading; None without one
    planned_s: float | None
    #: rows computed per wall second of this run
    rows_per_s: float
    #: tokens per wall second of this run
    output_tps: float
    prompt_tps: float
    #: prompt positions computed only to make rows equally long, of all prompt positions computed; 0..1
    padding: float
    #: rows decoding together, on average over the decode steps; None when there were none
    mean_batch: float | None
    #: mean batch over the cap in force; None when there were no decode steps
    occupancy: float | None
    cap: int
    #: why the model ran at batch 1, empty when it batched
    single: str
    #: most bytes the engine held at once
    peak_bytes: int
    #: "-" for stdout
    output: str
    #: where the failed requests are listed, None when there are none
    errors: str | None
    #: rows are texts that were embedded: no new tokens, no decode steps
    embeds: bool = False


def survey(answers: Iterable[Answer]) -> Survey:
    """Groups failures by kind and counts rows, in one pass and bounded memory."""
    failed = Failures()
    rows = thinking = 0
    for answer in answers:
        rows += len(answer.parts)
        thinking += sum(part.finish is Finish.THINKING for part in answer.parts)
        if answer.state in (RequestState.ERROR, RequestState.QUARANTINED):
            failed.add(answer.error or "no reason recorded", answer.custom_id, answer.source)
    return Survey(failures=failed.kinds(), rows=rows, thinking=thinking)


class Report:
    """The end report of a run: reads the job's answers once, then prints."""

    def __init__(self, job: JobRecord, result: RunResult, answers: Iterable[Answer]) -> None:
        output = job.spec.output
        errors = str(errors_file(output)) if result.counts.failed and output != STDOUT else None
        embeds = job.spec.task is Task.EMBED
        self.summary = make(job.id, result, survey(answers), output=output, errors=errors, embeds=embeds)

    def show(self, *, as_json: bool, to_stderr: bool) -> None:
        """Prints it: on stderr where the answers themselves go to stdout."""
        shown = json.dumps(as_dict(self.summary)) if as_json else text(self.summary)
        print(shown, file=sys.stderr if to_stderr else sys.stdout)


def make(
    job: int, result: RunResult, seen: Survey, *, output: str, errors: str | None, embeds: bool = False
) -> Summary:
    """The summary of a run that ended."""
    counts, total = result.counts, result.figures
    return Summary(
        job=job,
        requests=counts.requests,
        done=counts.done,
        failed=counts.failed,
        open=counts.open,
        failures=seen.failures,
        input_tokens=counts.input_tokens,
        output_tokens=counts.output_tokens,
        shared_tokens=total.shared_tokens,
        computed_rows=result.computed,
        reused_rows=max(seen.rows - result.computed, 0),
        thinking_rows=seen.thinking,
        crashes=result.crashes,
        seconds=result.seconds,
        planned_s=result.planned_s,
        rows_per_s=result.computed / result.seconds if result.seconds else 0.0,
        output_tps=total.output_tokens / result.seconds if result.seconds else 0.0,
        prompt_tps=total.prompt_tokens / result.seconds if result.seconds else 0.0,
        padding=total.padding_tokens / max(total.prompt_tokens + total.padding_tokens, 1),
        mean_batch=total.step_rows / total.steps if total.steps else None,
        occupancy=total.step_rows / total.step_cap if total.step_cap else None,
        cap=result.cap,
        single=result.single,
        peak_bytes=total.peak_bytes,
        output=output,
        errors=errors,
        embeds=embeds,
    )


def as_dict(summary: Summary) -> dict[str, Any]:
    """The summary as JSON has it."""
    return asdict(summary)


def text(summary: Summary) -> str:
    """The summary as a person reads it, without a last newline."""
    lines = [
        _line("requests", _requests(summary)),
        *failures.lines(summary.failures),
        _line("tokens", _tokens(summary)),
        _line("rows", _rows(summary)),
    ]
    if summary.thinking_rows:
        lines.append(_line("", f"{summary.thinking_rows:,} still thinking at --max-tokens, without an answer"))
    with_loading = f"{duration(summary.seconds)} with the loading of the model"
    if summary.embeds:
        speed = f"{summary.rows_per_s:,.0f} texts/s, {summary.prompt_tps:,.0f} tok/s, {with_loading}"
        lines += [_line("speed", f"{speed}, {summary.padding:.1%} padding")] if summary.computed_rows else []
    elif summary.mean_batch is not None and summary.occupancy is not None:
        speed = f"{summary.output_tps:,.0f} tok/s out, {summary.prompt_tps:,.0f} tok/s in"
        batch = f"{summary.mean_batch:.1f} rows on average, {summary.occupancy:.0%} of the cap"
        lines += [
            _line("speed", f"{speed}, {with_loading}"),
            _line("batch", f"{batch}, {summary.padding:.1%} padding"),
        ]
    if summary.planned_s:
        lines.append(_line("plan", _off(summary.planned_s, summary.seconds)))
    if summary.single:
        lines.append(_line("", f"one row at a time: {summary.single}"))
    if summary.peak_bytes:
        lines.append(_line("memory", f"{summary.peak_bytes / 1e9:.2f} GB at most in the engine"))
    lines.append(_line("output", "written to stdout" if summary.output == STDOUT else summary.output))
    if summary.errors:
        lines.append(_line("errors", summary.errors))
    return "\n".join(lines)


def _line(name: str, value: str) -> str:
    return f"{name:<9} {value}".rstrip()


def _off(planned_s: float, took_s: float) -> str:
    told = f"planned {duration(planned_s)}, took {duration(took_s)}"
    return f"{told} ({took_s / planned_s - 1:+.0%})" if planned_s >= SHARE_FROM_S else told


def _requests(summary: Summary) -> str:
    parts = [f"{summary.done:,} of {summary.requests:,} done", f"{summary.failed:,} failed"]
    if summary.open:
        parts.append(f"{summary.open:,} left open")
    return ", ".join(parts)


def _tokens(summary: Summary) -> str:
    if summary.embeds:
        return f"{summary.input_tokens:,}"
    shared = f"; {summary.shared_tokens:,} in shared prefixes, not computed again" if summary.shared_tokens else ""
    return f"{summary.input_tokens:,} in, {summary.output_tokens:,} out{shared}"


def _rows(summary: Summary) -> str:
    crashes = f", {summary.crashes:,} engine crash{'es' if summary.crashes > 1 else ''}" if summary.crashes else ""
    return f"{summary.computed_rows:,} computed, {summary.reused_rows:,} reused{crashes}"
