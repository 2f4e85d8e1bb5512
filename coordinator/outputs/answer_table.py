"""Answers as a Parquet file. Columns are those of a flat line; what the input carries, see `columns`."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from types import TracebackType
from typing import IO, Any

from coordinator.outputs.answer_lines import REASONING, Line, answer_field, carried, flat_line, own_fields
from coordinator.outputs.columns import arrow_type, cell, widened
from coordinator.records import Answer
from fleet.errors import UsageError
from fleet.job import Task
from fleet.packages import PARQUET_EXTRA, how_to_install

#: Rows written as one group.
GROUP_ROWS = 10_000


class AnswerTable:
    """Writes answers to a stream; reads all of them once beforehand to know the columns."""

    def __init__(self, stream: IO[bytes], answers: Iterable[Answer], task: Task) -> None:
        pyarrow = import_arrow()
        self._arrow = pyarrow
        self._task = task
        self._kinds = _column_kinds(answers, task)
        self._schema = pyarrow.schema([(name, arrow_type(pyarrow, kind)) for name, kind in self._kinds.items()])
        self._writer = pyarrow.parquet.ParquetWriter(stream, self._schema)
        self._lines: list[Line] = []

    def __enter__(self) -> AnswerTable:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if error is None:
            self.close()
        elif self._writer.is_open:
            self._lines.clear()
            with suppress(OSError):  # left open it would try again when it is collected
                self._writer.close()

    def add(self, answer: Answer) -> None:
        """Appends one answer."""
        self._lines.append(flat_line(answer, self._task))
        if len(self._lines) >= GROUP_ROWS:
            self._write()

    def close(self) -> None:
        """Writes what is left and the file's end; twice does no harm."""
        if self._writer.is_open:
            self._write()
            self._writer.close()

    def _write(self) -> None:
        columns = {name: [cell(line.get(name), kind) for line in self._lines] for name, kind in self._kinds.items()}
        self._writer.write_table(self._arrow.table(columns, schema=self._schema))
        self._lines.clear()


def import_arrow() -> Any:
    """pyarrow, with its Parquet part; UsageError where it is not installed."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise UsageError(
            f"a .parquet output needs pyarrow: {how_to_install(PARQUET_EXTRA)}; or choose an output in .jsonl"
        ) from error
    return pyarrow


def _column_kinds(answers: Iterable[Answer], task: Task) -> dict[str, str]:
    """Column name -> kind, ours first."""
    field = answer_field(task)
    several = False
    thought: dict[str, str] = {}
    found: dict[str, str] = {}
    for answer in answers:
        several = several or len(answer.parts) > 1
        if any(part.reasoning for part in answer.parts):
            thought |= {f"{REASONING}s": "texts"} if len(answer.parts) > 1 else {REASONING: "text"}
        for name, value in carried(answer, own_fields(task)).items():
            found[name] = widened(found.get(name), value)
    ours = {"id": "text", field: "text"} | ({f"{field}s": "texts"} if several else {}) | thought
    ours |= {"finish_reason": "text", "input_tokens": "integer", "output_tokens": "integer", "error": "text"}
    return ours | {name: kind or "text" for name, kind in found.items()}
