"""Inputs as they are sent to a coordinator: files as they are, a folder packed on the way."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import IO

from coordinator.intake.folders import PACKED_SUFFIX, pack, text_files
from coordinator.intake.inputs import STDIN
from coordinator.outputs.preflight import input_bytes
from fleet.errors import UsageError

BLOCK_BYTES = 256 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Parcel:
    """One upload; its blocks can be read once."""

    #: as the coordinator keeps it; the ending tells the format
    name: str
    #: bytes to come, about; None when nobody knows
    size_bytes: int | None
    blocks: Iterable[bytes]


def parcel(name: str, stdin: IO[bytes] | None = None) -> Parcel:
    """The upload of one INPUT; UsageError when it cannot be read."""
    if name == STDIN:
        stream = stdin or sys.stdin.buffer
        first = stream.read(BLOCK_BYTES)
        if not first:
            raise UsageError("standard input is empty: there is nothing to submit")
        return Parcel(name="stdin.jsonl", size_bytes=None, blocks=chain([first], _blocks(stream)))
    path = Path(name)
    if path.is_dir():
        if not text_files(path):
            raise UsageError(f"{name} has no text files")
        return Parcel(name=f"{path.absolute().name}{PACKED_SUFFIX}", size_bytes=input_bytes(path), blocks=pack(path))
    size_bytes = input_bytes(path)
    if path.is_file() and not size_bytes:
        raise UsageError(f"{name} is empty: there is nothing to submit")
    return Parcel(name=path.name, size_bytes=size_bytes, blocks=_file(path))


def _file(path: Path) -> Iterator[bytes]:
    try:
        with path.open("rb") as stream:
            yield from _blocks(stream)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}") from error


def _blocks(stream: IO[bytes]) -> Iterator[bytes]:
    while block := stream.read(BLOCK_BYTES):
        yield block
