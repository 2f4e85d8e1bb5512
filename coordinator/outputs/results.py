"""Writes a job's answers from the ledger to its output: whole, in input order, in one atomic step.

OUT gets the answers, `OUT.errors.jsonl` the requests that failed. A flat OUT has a line for these too; an OpenAI one
has not, as there. On standard output, which has no errors file, an OpenAI output keeps its error lines.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import IO

from coordinator.ledger.ledger import Ledger
from coordinator.outputs import vector_lines
from coordinator.outputs.answer_lines import Line, as_bytes, error_line, flat_line, openai_line
from coordinator.outputs.draft import Draft, draft
from coordinator.outputs.vector_files import NPY, write_vectors
from coordinator.records import Answer, JobRecord
from fleet.errors import UsageError
from fleet.job import RequestState, Task

STDOUT = "-"
PARQUET = ".parquet"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultCounts:
    """What was written."""

    done: int = 0
    failed: int = 0
    #: requests without an outcome yet, left out
    open: int = 0


def errors_file(output: str) -> Path:
    """Where the failed requests of `output` are listed."""
    return Path(f"{output}.errors.jsonl")


def drop_errors(output: str) -> None:
    """Removes a list of failed requests beside `output` that was written by us and has no cause any more."""
    place = errors_file(output)
    if _is_ours(place):
        place.unlink(missing_ok=True)


def is_parquet(output: str) -> bool:
    """Whether `output` is written as Parquet, which is flat always."""
    return output.lower().endswith(PARQUET)


def write_results(
    ledger: Ledger, job: JobRecord, *, openai: bool, output: str, stdout: IO[bytes] | None = None
) -> ResultCounts:
    """Writes the answers there are to the file `output`, or to `stdout` when it is "-".

    Raises StorageError when a file cannot be written (the old one stays whole), UsageError for a Parquet output
    without pyarrow.
    """
    check_kind(output, job.spec.task)
    vectors = job.spec.task is Task.EMBED
    if vectors and output.lower().endswith((PARQUET, NPY)):
        return _write_vectors(ledger, job, output, openai=openai)
    if is_parquet(output):
        from coordinator.outputs.answer_table import AnswerTable

        with ExitStack() as stack:
            known = ledger.counts(job.id).requests  # both readings stop there, also beside a run that adds some
            paper = stack.enter_context(draft(Path(output)))
            first, second = (islice(_answers(ledger, job), known) for _ in range(2))
            table = stack.enter_context(AnswerTable(paper.stream, first, job.spec.task))
            counts = _write_files(second, output, table.add, error_line)
            table.close()
            paper.keep()
        return counts
    line_of = _openai(job) if openai else _flat(job)
    if output == STDOUT:
        return _write_stream(_answers(ledger, job, vectors=vectors), line_of, stdout or sys.stdout.buffer)
    with draft(Path(output)) as paper:

        def add(answer: Answer) -> None:
            if not openai or answer.state is RequestState.DONE:
                paper.stream.write(as_bytes(line_of(answer)))

        answers = _answers(ledger, job, vectors=vectors)
        counts = _write_files(answers, output, add, line_of if openai else error_line)
        paper.keep()
    return counts


def _answers(ledger: Ledger, job: JobRecord, *, vectors: bool = False) -> Iterator[Answer]:
    """The job's answers; a failed one says where it came from as it may be told."""
    for answer in ledger.answers(job.id, vectors=vectors):
        if answer.error is None:
            yield answer
        else:
            source = replace(answer.source, file=job.told(answer.source.file))
            yield replace(answer, source=source, error=job.told(answer.error))


def _write_vectors(ledger: Ledger, job: JobRecord, output: str, *, openai: bool) -> ResultCounts:
    counts = ResultCounts()

    def pass_on(add: Callable[[Answer], None]) -> None:
        nonlocal counts
        counts = _write_files(_answers(ledger, job, vectors=True), output, add, error_line)

    write_vectors(ledger, job, output, openai=openai, pass_on=pass_on)
    return counts


def check_kind(output: str, task: Task) -> None:
    """UsageError when `output` is of a kind that the task's answers cannot be written as."""
    if output.lower().endswith(NPY) and task is not Task.EMBED:
        raise UsageError(f"{output}: a .npy file holds vectors, and {task} makes none: choose an output in .jsonl")


def _flat(job: JobRecord) -> Callable[[Answer], Line]:
    if job.spec.task is Task.EMBED:
        dtype = vector_lines.dtype_of(job)
        return lambda answer: vector_lines.flat_line(answer, dtype)
    return lambda answer: flat_line(answer, job.spec.task)


def _openai(job: JobRecord) -> Callable[[Answer], Line]:
    if job.spec.task is Task.EMBED:
        return lambda answer: openai_line(answer, job, vector_lines.openai_body(answer, job))
    return lambda answer: openai_line(answer, job)


class _Tally:
    """Counts answers as they pass, and lets only those with an outcome by."""

    def __init__(self) -> None:
        self._states = dict.fromkeys(RequestState, 0)

    def ended(self, answers: Iterable[Answer]) -> Iterator[Answer]:
        for answer in answers:
            self._states[answer.state] += 1
            if answer.state is not RequestState.OPEN:
                yield answer

    def counts(self) -> ResultCounts:
        states = self._states
        failed = states[RequestState.ERROR] + states[RequestState.QUARANTINED]
        return ResultCounts(done=states[RequestState.DONE], failed=failed, open=states[RequestState.OPEN])


def _write_stream(answers: Iterable[Answer], line_of: Callable[[Answer], Line], stream: IO[bytes]) -> ResultCounts:
    tally = _Tally()
    for answer in tally.ended(answers):
        stream.write(as_bytes(line_of(answer)))
    stream.flush()
    return tally.counts()


def _write_files(
    answers: Iterable[Answer], output: str, add: Callable[[Answer], None], error_of: Callable[[Answer], Line]
) -> ResultCounts:
    """Gives each answer to `add` and lists failed ones beside `output`; a list of ours without cause is removed."""
    tally = _Tally()
    place = errors_file(output)
    with ExitStack() as stack:
        errors: Draft | None = None
        for answer in tally.ended(answers):
            add(answer)
            if answer.state is not RequestState.DONE:
                errors = errors or stack.enter_context(draft(place))
                errors.stream.write(as_bytes(error_of(answer)))
        if errors is not None:
            errors.keep()
        else:
            drop_errors(output)
    return tally.counts()


def _is_ours(path: Path) -> bool:
    try:
        with path.open("rb") as stream:
            first = json.loads(stream.readline(1 << 20))
    except (OSError, ValueError):
        return False
    return isinstance(first, dict) and "error" in first and bool(first.keys() & {"source", "custom_id"})
