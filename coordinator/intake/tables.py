"""CSV and Parquet: each row is a record whose text stands in one column."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from coordinator.intake.formats import SAVE_AS_UTF8, Record, legible
from coordinator.records import Source
from fleet.errors import UsageError
from fleet.packages import PARQUET_EXTRA, how_to_install

#: Fields of a CSV file may be whole documents; Python's own limit is 128 KB.
MAX_FIELD_CHARS = 256 << 20
_TEXT_COLUMNS = ("text", "prompt")
#: Parquet rows in memory at once.
_BATCH_ROWS = 256


def text_column(columns: Sequence[str], wanted: str | None, where: str) -> str:
    """The column that holds the text: the one asked for, else `text`, `prompt` or the only one; or UsageError."""
    twice = next((name for name in columns if columns.count(name) > 1), None)
    if twice is not None:
        raise UsageError(f"{where} has two columns named {twice!r}: rename one")
    if wanted is None and len(columns) == 1:
        return columns[0]
    found = next((name for name in ((wanted,) if wanted else _TEXT_COLUMNS) if name in columns), None)
    if found is None:
        missing = f"no column {wanted!r}" if wanted else "no column text or prompt"
        raise UsageError(f"{where} has {missing}, only {', '.join(columns)}: choose one with --text-field")
    return found


def read_csv(path: Path, text_field: str | None) -> Iterator[Record]:
    """A record for each row under the header; the separator is a tab in .tsv, else what the header uses."""
    # surrogateescape keeps a bad byte inside its row, where it becomes that row's error
    with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as stream:
        csv.field_size_limit(MAX_FIELD_CHARS)  # the module's only way; no one else here reads CSV
        reader = csv.reader(stream, delimiter=_separator(path, stream), strict=True)
        try:
            columns = next((row for row in reader if row), None)
        except csv.Error as error:
            raise UsageError(f"{path} has no readable header line: {error}") from error
        if columns is None:
            return
        if (bad := _bad_byte(columns)) is not None:
            raise UsageError(
                f"{path}:{reader.line_num}: not UTF-8: found byte 0x{bad[1]:02X} in the header: {SAVE_AS_UTF8}"
            )
        column = text_column(columns, text_field, str(path))
        yield from _csv_rows(reader, columns, column, legible(path))


def _separator(path: Path, stream: IO[str]) -> str:
    if path.suffix.lower() == ".tsv":
        return "\t"
    header = stream.readline()
    stream.seek(0)
    return max((",", ";", "\t"), key=header.count)


def _csv_rows(reader: Any, columns: list[str], column: str, file: str) -> Iterator[Record]:
    while True:
        source = Source(file=file, line=reader.line_num + 1)
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield Record(source=source, error=f"not CSV: {error}")
            continue
        if not row:
            continue
        if len(row) != len(columns):
            yield Record(source=source, error=f"found {len(row)} fields, expected {len(columns)} as in the header")
        elif (bad := _bad_byte(row)) is not None:
            where = f"in column {columns[bad[0]]!r}"
            reason = f"not UTF-8: found byte 0x{bad[1]:02X} {where}: {SAVE_AS_UTF8}"
            told = [field.encode("utf-8", "surrogateescape").decode("utf-8", "replace") for field in row]
            value = dict(zip(columns, told, strict=True))
            yield Record(source=source, value=value, text_field=column, error=reason)
        else:
            yield Record(source=source, value=dict(zip(columns, row, strict=True)), text_field=column)


def _bad_byte(row: Sequence[str]) -> tuple[int, int] | None:
    """(field number, byte) of the first byte that is not UTF-8, which surrogateescape put at 0xDC00 and the byte."""
    for number, field in enumerate(row):
        if not field.isascii():
            for char in field:
                if "\udc80" <= char <= "\udcff":
                    return number, ord(char) - 0xDC00
    return None


def read_parquet(path: Path, text_field: str | None) -> Iterator[Record]:
    """A record for each row; columns of types that JSON lacks are carried as text."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise UsageError(f"{path} is Parquet, which needs pyarrow: {how_to_install(PARQUET_EXTRA)}") from error
    try:
        with pq.ParquetFile(path) as file:
            column = text_column(list(file.schema_arrow.names), text_field, str(path))
            number = 0
            for batch in file.iter_batches(batch_size=_BATCH_ROWS):
                for row in batch.to_pylist():
                    number += 1
                    value = {name: _plain(item) for name, item in row.items()}
                    yield Record(source=Source(file=legible(path), line=number), value=value, text_field=column)
    except pa.ArrowException as error:
        raise UsageError(f"{path} cannot be read as Parquet: {error}") from error


def _plain(value: Any) -> Any:
    """`value` as JSON can say it."""
    if isinstance(value, dict):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, str | int | bool) else str(value)
