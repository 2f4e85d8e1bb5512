"""Inputs of every kind as one stream of records; says at once when an input cannot be read."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from pathlib import Path

from coordinator.intake.folders import PACKED_SUFFIX, TEXT_SUFFIXES, read_folder, read_text, text_files, unpack
from coordinator.intake.formats import TABLE_SUFFIXES, Record, legible
from coordinator.intake.jsonl import read_jsonl
from coordinator.intake.tables import read_csv, read_parquet
from fleet.errors import UsageError

#: The name of standard input.
STDIN = "-"
#: Endings that promise JSON lines; in other files, and on standard input, one of the first lines must be an object.
JSONL_SUFFIXES = (".jsonl", ".ndjson", ".json")
_LOOKED_AT = 10
_PIPED_TEXT = (
    "standard input is not JSONL: expected a JSON object a line; for a text that is one request, "
    "give its file, with an ending like .txt"
)
_UNKNOWN = "is not JSONL, CSV, TSV, Parquet or text: known endings are " + ", ".join(
    (*JSONL_SUFFIXES, *TABLE_SUFFIXES, ".parquet", *TEXT_SUFFIXES)
)


def check_inputs(inputs: Sequence[str]) -> None:
    """Raises UsageError naming the first input that is missing or cannot be read."""
    if not inputs:
        raise UsageError("no input: give a file, a folder, or - for standard input")
    if inputs.count(STDIN) > 1:
        raise UsageError("standard input (-) can be read only once")
    for name in inputs:
        if name == STDIN:
            continue
        if not Path(name).exists():
            raise UsageError(f"no input at {name}: the file or folder does not exist")
        if not os.access(name, os.R_OK):
            raise UsageError(f"{name} cannot be read: no permission")


def records(inputs: Sequence[str], text_field: str | None = None) -> Iterator[Record]:
    """Every record of `inputs` in order; UsageError when an input as a whole cannot be worked on."""
    for name in inputs:
        try:
            yield from _records(name, text_field)
        except OSError as error:
            raise UsageError(f"{name} cannot be read: {error.strerror or error}") from error


def signature(inputs: Sequence[str]) -> str:
    """A name for the inputs as they are now (path, size and mtime of each file), empty with standard input."""
    if STDIN in inputs:
        return ""
    digest = hashlib.sha256()
    for name in inputs:
        path = Path(name).absolute()
        for file in text_files(path) if path.is_dir() else [path]:
            digest.update(f"{file}|{_version(file)}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()


def _version(file: Path) -> str:
    try:
        about = file.stat()
    except OSError:  # a link to nothing, or deleted meanwhile: reading it tells
        return "gone"
    return f"{about.st_size}|{about.st_mtime_ns}"


def _records(name: str, text_field: str | None) -> Iterator[Record]:
    path = Path(name)
    suffix = path.suffix.lower()
    if name == STDIN:
        yield from _some_objects(read_jsonl(sys.stdin.buffer, "stdin"), _PIPED_TEXT)
    elif path.is_dir():
        yield from read_folder(path)
    elif suffix in TABLE_SUFFIXES:
        yield from read_csv(path, text_field)
    elif suffix == ".parquet":
        yield from read_parquet(path, text_field)
    elif suffix in TEXT_SUFFIXES:
        yield read_text(path, path.name)
    else:
        with path.open("rb") as stream:
            lines = read_jsonl(stream, legible(name))
            lines = unpack(lines) if suffix == PACKED_SUFFIX else lines
            yield from (
                lines if suffix in (*JSONL_SUFFIXES, PACKED_SUFFIX) else _some_objects(lines, f"{name} {_UNKNOWN}")
            )


def _some_objects(lines: Iterator[Record], otherwise: str) -> Iterator[Record]:
    """`lines`; UsageError with the sentence `otherwise` when none of the first ones is a JSON object."""
    first: list[Record] = []
    for record in islice(lines, _LOOKED_AT):
        first.append(record)
        if isinstance(record.value, dict):
            break
    else:
        if first:
            raise UsageError(otherwise)
    yield from chain(first, lines)
