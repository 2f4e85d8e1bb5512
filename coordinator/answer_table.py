"""Answers as a Parquet file; the only writer of pyarrow. Columns are those of a flat line.

A field that the input carries becomes a column of its type where all its values share one (bool, integer, float,
text), else of JSON text.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress
from types import TracebackType
from typing import IO, Any

from coordinator.answer_lines import REASONING, Line, answer_field, carried, flat_line
from coordinator.records import Answer
from fleet.errors import UsageError
from fleet.job import Task
from fleet.packages import PARQUET_EXTRA, how_to_install

#: Rows written as one group.
GROUP_ROWS = 10_000
_INT64 = range(-(1 << 63), 1 << 63)


class AnswerTable:
    """Writes answers to a stream; reads all of them once beforehand to know the columns."""

    def __init__(self, stream: IO[bytes], answers: Iterable[Answer], task: Task) -> None:
        try:
            import pyarrow
            import pyarrow.parquet
        except ImportError as error:
            raise UsageError(
                f"a .parquet output needs pyarrow: {how_to_install(PARQUET_EXTRA)}; or choose an output in .jsonl"
            ) from error
        self._arrow = pyarrow
        self._task = task
        self._kinds = _column_kinds(answers, task)
        self._schema = pyarrow.schema([(name, _arrow_type(pyarrow, kind)) for name, kind in self._kinds.items()])
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
        columns = {name: [_cell(line.get(name), kind) for line in self._lines] for name, kind in self._kinds.items()}
        self._writer.write_table(self._arrow.table(columns, schema=self._schema))
        self._lines.clear()


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
        for name, value in carried(answer, task).items():
            found[name] = _widened(found.get(name), value)
    ours = {"id": "text", field: "text"} | ({f"{field}s": "texts"} if several else {}) | thought
    ours |= {"finish_reason": "text", "input_tokens": "integer", "output_tokens": "integer", "error": "text"}
    return ours | {name: kind or "text" for name, kind in found.items()}


def _widened(kind: str | None, value: Any) -> str:
    if value is None:
        return kind or ""
    new = _kind(value)
    if not kind or kind == new:
        return new
    return "float" if {kind, new} == {"integer", "float"} else "json"


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        return "integer" if value in _INT64 else "json"
    if isinstance(value, float):
        return "float"
    return "text" if isinstance(value, str) else "json"


def _arrow_type(pyarrow: Any, kind: str) -> Any:
    types = {"boolean": pyarrow.bool_(), "integer": pyarrow.int64(), "float": pyarrow.float64()}
    return pyarrow.list_(pyarrow.string()) if kind == "texts" else types.get(kind, pyarrow.string())


def _cell(value: Any, kind: str) -> Any:
    if value is None:
        return None
    if kind == "json":
        return json.dumps(value, ensure_ascii=False)
    return float(value) if kind == "float" else value
