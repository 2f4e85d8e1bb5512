"""A job's output with what lies beside it as one stream, a tar: all of it is of one moment."""

from __future__ import annotations

import tarfile
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from fleet.errors import DecodeError

#: The output's name before its ending; what lies beside it has more behind that.
NAME = "answers"
#: The ending for answers in the form of standard output.
STREAM = "stream"
#: Beginning of the folders that outputs are written in on their way.
DRAFTS = "answers-"
_BLOCK_BYTES = 1 << 20


def packed(folder: tempfile.TemporaryDirectory[str]) -> Iterator[bytes]:
    """The files of `folder`, which is gone when the iterator ends or is dropped."""
    with folder as name:
        for path in sorted(Path(name).iterdir()):
            with path.open("rb") as stream:
                info = tarfile.TarInfo(path.name)
                info.size = path.stat().st_size
                yield info.tobuf(tarfile.PAX_FORMAT)
                while block := stream.read(_BLOCK_BYTES):
                    yield block
                yield b"\0" * (-info.size % tarfile.BLOCKSIZE)
    yield b"\0" * (2 * tarfile.BLOCKSIZE)


def unpack(stream: IO[bytes], form: str, keep: Callable[[str, IO[bytes]], None]) -> None:
    """Hands each file to `keep` with what its name has behind `answers.<form>`; DecodeError for anything else."""
    try:
        with tarfile.open(fileobj=stream, mode="r|") as archive:
            for info in archive:
                own = info.name.removeprefix(f"{NAME}.{form}")
                file = archive.extractfile(info) if info.isreg() and own != info.name and "/" not in own else None
                if file is None:
                    raise DecodeError("the coordinator sent something that is no output of a job")
                keep(own, file)
    except tarfile.TarError as error:
        raise DecodeError("the answers broke off on their way: ask again") from error
