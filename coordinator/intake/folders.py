"""Text files, alone or in a folder: each file is one text. A folder that is sent travels as one file: packed."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from coordinator.intake.formats import Record, legible, not_utf8
from coordinator.intake.jsonl import dump
from coordinator.records import Source
from fleet.errors import UsageError

TEXT_SUFFIXES = (".txt", ".text", ".md", ".markdown", ".rst")
#: The ending of a packed folder: JSON lines, `id` the text's path in it, `text`, and where that is null `unreadable`.
PACKED_SUFFIX = ".folder"


def text_files(folder: Path) -> list[Path]:
    """Text files under `folder`, hidden ones left out, in the order of their relative paths. Also folders in it that
    cannot be listed: reading one as a text tells so."""
    found: list[Path] = []

    def note(error: OSError) -> None:
        found.append(Path(error.filename))

    for root, names, files in os.walk(folder, onerror=note):
        names[:] = [name for name in names if not name.startswith(".")]
        found += [
            Path(root, file)
            for file in files
            if not file.startswith(".") and Path(file).suffix.lower() in TEXT_SUFFIXES
        ]
    return sorted(found, key=lambda path: path.relative_to(folder).parts)


def read_folder(folder: Path) -> Iterator[Record]:
    """A record for each text file under `folder`, named by its path in there; UsageError when there is none."""
    files = text_files(folder)
    if not files:
        raise UsageError(f"{folder} has no text files ({', '.join(TEXT_SUFFIXES)})")
    for path in files:
        yield read_text(path, path.relative_to(folder).as_posix())


def read_text(path: Path, name: str) -> Record:
    """The record of one file, UTF-8 with or without a byte order mark."""
    source, name = Source(file=legible(path), line=0), legible(name)
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # reading a pipe would wait for ever
            return Record(source=source, error="cannot be read: not a regular file", name=name)
        return Record(
            source=source, value={"text": path.read_bytes().decode("utf-8-sig")}, text_field="text", name=name
        )
    except UnicodeDecodeError as error:
        return Record(source=source, error=not_utf8(error), name=name)
    except OSError as error:
        return Record(source=source, error=f"cannot be read: {error.strerror or error}", name=name)


def pack(folder: Path) -> Iterator[bytes]:
    """The lines of the packed folder."""
    for record in read_folder(folder):
        line = {"id": record.name, **(record.value or {"text": None, "unreadable": record.error})}
        yield dump(line).encode() + b"\n"


def unpack(lines: Iterable[Record]) -> Iterator[Record]:
    """The records that `read_folder` gave where the folder was packed; other lines as they are."""
    for line in lines:
        match line.value:
            case {"id": str(name), "text": str(text)}:
                yield replace(line, value={"text": text}, text_field="text", name=name)
            case {"id": str(name), "text": None, "unreadable": str(error)}:
                yield replace(line, value=None, error=error, name=name)
            case _:
                yield line
