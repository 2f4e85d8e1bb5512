"""What every input format gives: records."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from coordinator.records import Source

TABLE_SUFFIXES = (".csv", ".tsv")

SAVE_AS_UTF8 = "save the file as UTF-8"


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One line, table row or file of an input, decoded."""

    source: Source
    #: any JSON value; with `error` set the fields that can be told all the same, or None
    value: Any = None
    #: why it could not be decoded
    error: str | None = None
    #: the field of `value` that holds the text, where the format says so; None for JSON lines
    text_field: str | None = None
    #: a text file's own name, which is its id; empty for none
    name: str = ""


def legible(name: str | os.PathLike[str]) -> str:
    r"""A file's name as text that can be stored and shown: bytes that are not UTF-8 become \xHH, so that names which
    differ still do."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def not_utf8(error: UnicodeDecodeError) -> str:
    """The sentence for bytes that are not UTF-8."""
    return f"not UTF-8: found byte 0x{error.object[error.start]:02X} at byte {error.start + 1}: {SAVE_AS_UTF8}"
