"""Vectors as a Parquet file, a row each, written in groups so that only one is in memory."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from types import TracebackType
from typing import IO, Any

from coordinator.intake.vector_options import CHUNK, TRUNCATE
from coordinator.ledger.vectors import unpack
from coordinator.outputs.answer_lines import Line, carried
from coordinator.outputs.answer_table import import_arrow
from coordinator.outputs.columns import arrow_type, cell, widened
from coordinator.outputs.vector_lines import OWN_FIELDS, is_truncated, pieces
from coordinator.records import Answer
from fleet.errors import UsageError
from fleet.job import RequestState

#: Rows written as one group, at most, and the bytes of their vectors.
GROUP_ROWS = 10_000
GROUP_BYTES = 8 << 20
#: Name of the metadata that says which model made the vectors, as JSON.
METADATA = b"fleet.embedding"


class VectorTable:
    """Writes the vectors of answered requests to a stream; `close` ends the file."""

    def __init__(self, stream: IO[bytes], answers: Iterable[Answer], *, dtype: str, several: bool, long: str) -> None:
        """Reads all `answers` once to know the columns; `several` requests may have many texts, `long` says what
        became of those over the model's length."""
        self._arrow = import_arrow()
        self._stream = stream
        self._dtype = dtype
        #: column name -> its kind, those of ours beside the vector
        self._kinds = {"id": "text"} | ({"index": "integer"} if several else {})
        self._kinds |= {"tokens": "integer", "truncated": "boolean"}
        if long == CHUNK:
            self._kinds |= {"chunk": "integer", "start": "integer", "end": "integer"}
        elif long == TRUNCATE:
            self._kinds |= {"text_tokens": "integer"}
        found: dict[str, str] = {}
        for answer in answers:
            for name, value in _carried(answer).items():
                found[name] = widened(found.get(name), value)
        self._kinds |= {name: kind or "text" for name, kind in found.items()}
        self._writer: Any = None
        self._metadata: dict[bytes, bytes] = {}
        self._lines: list[Line] = []
        self._vectors = bytearray()
        #: numbers in each vector, 0 before the first
        self.dimensions = 0
        self.rows = 0

    def __enter__(self) -> VectorTable:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self._writer is not None and self._writer.is_open:
            with suppress(OSError):  # left open it would try again when it is collected
                self._writer.close()

    def add(self, answer: Answer) -> None:
        """Appends the vectors of one request, none where it failed."""
        if answer.state is not RequestState.DONE:
            return
        fields = _carried(answer)
        for index, chunk, part in pieces(answer):
            self.dimensions = same_size(self.dimensions, len(unpack(part.vector, self._dtype)))
            place = part.place
            line: Line = {"id": answer.custom_id, "index": index, "tokens": part.input_tokens, "chunk": chunk}
            line["truncated"] = is_truncated(part)
            if place is not None:
                line |= {"start": place.start, "end": place.end, "text_tokens": place.cut_tokens or None}
            self._lines.append(line | fields)
            self._vectors += part.vector
            if len(self._lines) >= GROUP_ROWS or len(self._vectors) >= GROUP_BYTES:
                self._write()

    @property
    def waiting(self) -> int:
        """Vectors that are in no group yet."""
        return len(self._lines)

    def close(self, metadata: bytes) -> None:
        """Writes what is left, and the file's end with its `metadata`."""
        self._write()
        self._writer.add_key_value_metadata({METADATA: metadata})
        self._writer.close()

    def _write(self) -> None:
        arrow = self._arrow
        numbers = arrow.from_numpy_dtype(self._dtype)
        vector_type = arrow.list_(numbers, max(self.dimensions, 1))
        if self._writer is None:
            fields = [(name, arrow_type(arrow, kind)) for name, kind in self._kinds.items()]
            self._schema = arrow.schema([fields[0], ("vector", vector_type), *fields[1:]])
            # numbers that all differ gain nothing from a dictionary, and cost four times the time
            dictionary = list(self._kinds)
            self._writer = arrow.parquet.ParquetWriter(self._stream, self._schema, use_dictionary=dictionary)
        columns = {name: [cell(line.get(name), kind) for line in self._lines] for name, kind in self._kinds.items()}
        flat = arrow.array(unpack(self._vectors, self._dtype))
        columns["vector"] = arrow.FixedSizeListArray.from_arrays(flat, type=vector_type)
        self._writer.write_table(arrow.table(columns, schema=self._schema))
        self.rows += len(self._lines)
        self._lines.clear()
        self._vectors = bytearray()  # Arrow may still look at the old one


def same_size(known: int, size: int) -> int:
    """`size`, which must be the one `known`, 0 for none; UsageError when vectors differ in it."""
    if known not in (0, size):
        raise UsageError(
            f"the vectors have {known} and {size} numbers, and a matrix holds one size: choose an output in .jsonl; "
            "the vectors are recorded, `fleet results` writes them"
        )
    return size


def _carried(answer: Answer) -> Line:
    return carried(answer, OWN_FIELDS) if not answer.url else {}
