"""Files that came in over the network, kept in the state folder until they are deleted.

uploads/<id>/<name>     the file, under the name it came with: intake reads its ending
uploads/<id>.json       what is known of it, written last: without it the file was broken off and is no upload
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from coordinator.outputs.preflight import SPARE_BYTES
from fleet import private
from fleet.config import StateDir
from fleet.errors import StorageError

#: How often the disk is looked at while a file comes in, bytes.
LOOK_BYTES = 16 << 20
#: Longest name kept, bytes; file systems take 255.
NAME_BYTES = 200
_ID = re.compile(r"file-[0-9a-f]{24}")
_UNNAMED = "upload"


class NoRoomError(StorageError):
    """Raised when the disk would be too full with an upload."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Upload:
    """A file that arrived whole."""

    id: str
    #: as it came, without folders
    filename: str
    size_bytes: int
    #: unix seconds
    created: float


class Arrival:
    """A file on its way in."""

    def __init__(self, stream: IO[bytes], folder: Path) -> None:
        self._stream = stream
        self._folder = folder
        self._looked_bytes = 0
        self.size_bytes = 0
        self.upload: Upload | None = None

    def write(self, data: bytes) -> None:
        """Appends; NoRoomError before the disk is full."""
        try:
            if self.size_bytes >= self._looked_bytes:
                check_room(self._folder, LOOK_BYTES)
                self._looked_bytes = self.size_bytes + LOOK_BYTES
            self._stream.write(data)
        except OSError as error:
            raise NoRoomError(f"the upload cannot be written ({error.strerror}): free some disk") from error
        self.size_bytes += len(data)

    def keep(self) -> Upload:
        """Makes it an upload; on disk when this returns."""
        self._stream.flush()
        os.fsync(self._stream.fileno())
        name = Path(self._stream.name).name
        upload = Upload(id=self._folder.name, filename=name, size_bytes=self.size_bytes, created=time.time())
        write_json(about_file(self._folder), asdict(upload))
        self.upload = upload
        return upload


class Uploads:
    """The uploads of one state folder; safe to use from several threads."""

    def __init__(self, state: StateDir) -> None:
        self._root = state.root / "uploads"

    def clear_broken(self) -> None:
        """Removes what a killed process left half-way; to be called before anything comes in."""
        for folder in self._root.glob("file-*/"):
            if not about_file(folder).exists():
                shutil.rmtree(folder, ignore_errors=True)

    def check_room(self, need_bytes: int) -> None:
        """Raises NoRoomError when so much can certainly not come in."""
        check_room(next(folder for folder in (self._root, *self._root.parents) if folder.exists()), need_bytes)

    @contextmanager
    def receive(self, filename: str) -> Iterator[Arrival]:
        """A place for a file; unless it was kept when the context ends, nothing is left of it."""
        folder = self._root / f"file-{secrets.token_hex(12)}"
        try:
            folder.mkdir(parents=True, mode=0o700)
            stream = (folder / safe_name(filename)).open("xb")
        except OSError as error:
            raise StorageError(f"an upload cannot be written on the coordinator's Mac ({error.strerror})") from error
        arrival = Arrival(stream, folder)
        try:
            with stream:
                yield arrival
        finally:
            if arrival.upload is None:
                shutil.rmtree(folder, ignore_errors=True)

    def all(self) -> list[Upload]:
        """Every upload, newest first."""
        found = [self.get(path.stem) for path in self._root.glob("file-*.json")]
        return sorted((upload for upload in found if upload), key=lambda upload: (-upload.created, upload.id))

    def get(self, id: str) -> Upload | None:
        """The upload of this id, None when there is none."""
        about = read_json(about_file(self._root / id)) if _ID.fullmatch(id) else None
        return None if about is None else Upload(**about)

    def path(self, upload: Upload) -> Path:
        """Where its bytes are."""
        return self._root / upload.id / upload.filename

    def delete(self, id: str) -> bool:
        """Removes an upload; False when there is none of this id."""
        if self.get(id) is None:
            return False
        about_file(self._root / id).unlink(missing_ok=True)
        shutil.rmtree(self._root / id, ignore_errors=True)
        return True


def about_file(folder: Path) -> Path:
    """Where it is told what is in an upload's folder."""
    return folder.with_name(f"{folder.name}.json")


def safe_name(name: str) -> str:
    """`name` as the name of a file in a folder of ours, its ending kept."""
    last = name.replace("\\", "/").rpartition("/")[2]
    plain = "".join(char if char.isprintable() else "_" for char in last).lstrip(".")
    stem, dot, ending = plain.rpartition(".")
    while len(plain.encode("utf-8", "replace")) > NAME_BYTES:
        stem, ending = (stem[:-1], ending) if stem else (stem, ending[:-1])
        plain = f"{stem}{dot}{ending}"
    return plain.encode("utf-8", "replace").decode() or _UNNAMED


def check_room(folder: Path, need_bytes: int) -> None:
    """Raises NoRoomError when the disk of `folder` could not take `need_bytes` and leave something free."""
    free = shutil.disk_usage(folder).free
    if free < need_bytes + SPARE_BYTES:
        raise NoRoomError(
            f"the coordinator's disk has {free >> 20} MB free and needs {(need_bytes + SPARE_BYTES) >> 20} MB for this"
        )


def write_json(path: Path, value: object) -> None:
    """Replaces a small file in one step, on disk when this returns."""
    private.write(path, json.dumps(value))


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in a small file, None when there is none."""
    try:
        value = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None
