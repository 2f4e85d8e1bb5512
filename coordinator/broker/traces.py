"""What a run leaves outside of its state folder, noted inside it, so that after a kill -9 the next run removes it."""

from __future__ import annotations

import json
import os
import shutil
import stat
from dataclasses import asdict, dataclass
from pathlib import Path

from fleet.config import StateDir
from fleet.errors import StorageError

#: Begins the name of every folder that we make outside of a state folder.
FOLDER_PREFIX = "fleet-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Traces:
    """The traces of one run; each is empty when there is none."""

    #: folder of the broker's socket
    folder: str = ""
    #: our epoch in a Redis that a person brought
    epoch: str = ""
    #: the workers that may have keys there
    workers: tuple[str, ...] = ()


class TraceBook:
    """The file of traces. Only the holder of the folder's lock uses it."""

    def __init__(self, state: StateDir) -> None:
        self._path = state.traces

    def read(self) -> Traces:
        """What was noted last; nothing where that cannot be read."""
        try:
            fields = json.loads(self._path.read_text())
            return Traces(
                folder=str(fields["folder"]),
                epoch=str(fields["epoch"]),
                workers=tuple(str(worker) for worker in fields["workers"]),
            )
        except (OSError, ValueError, KeyError, TypeError):
            return Traces()

    def note(self, traces: Traces) -> None:
        """Replaces what was noted; StorageError when it cannot be written."""
        draft = self._path.with_suffix(".tmp")
        try:
            if traces == Traces():
                self._path.unlink(missing_ok=True)
                return
            draft.write_text(json.dumps(asdict(traces)))
            draft.replace(self._path)
        except OSError as error:
            raise StorageError(f"{self._path} cannot be written ({error.strerror}): free some space") from error


def remove_folder(folder: str) -> None:
    """Removes a folder that a run of this user made for a socket; anything else of that name is left alone."""
    path = Path(folder)
    if not folder or not path.is_absolute() or not path.name.startswith(FOLDER_PREFIX):
        return
    try:
        about = path.lstat()
    except OSError:
        return
    if stat.S_ISDIR(about.st_mode) and about.st_uid == os.geteuid():
        shutil.rmtree(path, ignore_errors=True)
