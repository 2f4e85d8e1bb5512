"""Where things live on disk, and the timings both wings must agree on."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from fleet.errors import StorageError

#: A worker renews its lease this often, seconds.
BEAT_S = 3.0
#: A lease not renewed for this long is lost, seconds; read by PTTL, never by comparing two clocks.
LEASE_TTL_S = 12.0
#: Finished rows leave an agent this often, seconds.
FLUSH_S = 2.0
#: An engine whose loop gives no Pulse for this long is stalled and replaced, seconds.
STALL_S = 300.0


@dataclass(frozen=True, slots=True)
class StateDir:
    """The folder that holds one coordinator's record."""

    root: Path

    @classmethod
    def default(cls) -> StateDir:
        """`$XDG_STATE_HOME/fleet`, `~/.local/state/fleet` without it."""
        try:
            base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
        except RuntimeError as error:
            raise StorageError("there is no home folder to keep the record in: give --state-dir") from error
        return cls(Path(base) / "fleet")

    @property
    def ledger(self) -> Path:
        """The SQLite file."""
        return self.root / "ledger.sqlite"

    @property
    def lock(self) -> Path:
        """Held exclusively by the process that works on this folder."""
        return self.root / "lock"

    @property
    def pids(self) -> Path:
        """JSON lines `{pid, started, role}` of the processes started here, to clear after a kill -9."""
        return self.root / "pids"

    @property
    def traces(self) -> Path:
        """JSON of what a run has outside of this folder, to clear after a kill -9."""
        return self.root / "traces.json"

    @property
    def logs(self) -> Path:
        """Log files of the broker, the worker and the engine; none holds a prompt's text."""
        return self.root / "log"

    @property
    def knees(self) -> Path:
        """JSON of what was measured on this machine, by model and length."""
        return self.root / "knees.json"

    def has_ledger(self) -> bool:
        """Whether anything is recorded here; StorageError when the folder does not let us look."""
        try:
            self.ledger.stat()
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            raise StorageError(
                f"the state folder {self.root} cannot be read ({error.strerror}): give another with --state-dir"
            ) from error
        return True

    def make(self) -> None:
        """Creates the folder, private to its owner; StorageError when it cannot be."""
        try:
            self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
            self.logs.mkdir(exist_ok=True, mode=0o700)
        except OSError as error:
            raise StorageError(
                f"the state folder {self.root} cannot be made ({error.strerror}): choose another with --state-dir"
            ) from error
