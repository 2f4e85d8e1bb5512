"""A file written beside its place and moved there when it is whole: whoever reads sees the old one or the new one."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from fleet.errors import StorageError

_BUFFER_BYTES = 1 << 20


class Draft:
    """Opened by `draft`; dropped unless it is kept."""

    def __init__(self, place: Path) -> None:
        self._place = place.resolve()  # through a link to the file it names
        self._special = self._place.exists() and not self._place.is_file()
        self._path = self._place.with_name(f".{secrets.token_hex(8)}.draft")  # short: the place's name may be long
        if self._special:  # a pipe or a device is written, never replaced
            self.stream: IO[bytes] = self._place.open("wb", _BUFFER_BYTES)
        else:
            self.stream = self._path.open("xb", _BUFFER_BYTES)

    def keep(self) -> None:
        """Puts the file in its place, on disk."""
        self.stream.flush()
        if self._special:
            return
        os.fsync(self.stream.fileno())
        self.stream.close()
        if self._place.exists():
            self._path.chmod(self._place.stat().st_mode & 0o7777)
        self._path.replace(self._place)
        folder = os.open(self._place.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def drop(self) -> None:
        """Removes what was written and not kept; after `keep` does nothing."""
        with suppress(OSError):  # closing writes what is buffered, which a full disk refuses
            self.stream.close()
        if not self._special:
            self._path.unlink(missing_ok=True)


@contextmanager
def draft(place: Path) -> Iterator[Draft]:
    """A draft of the file at `place`; StorageError when it cannot be written, and the old file stays whole."""
    paper: Draft | None = None
    try:
        paper = Draft(place)
        yield paper
    except BrokenPipeError:
        raise
    except OSError as error:
        raise StorageError(
            f"{place} cannot be written ({error.strerror or error}): free some space or choose another output; "
            "the answers are recorded, `fleet results` writes them again"
        ) from error
    finally:
        if paper is not None:
            paper.drop()
