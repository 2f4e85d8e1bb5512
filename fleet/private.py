"""Files that only their owner may read: secrets of the fleet."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path

from fleet.errors import StorageError


def write(path: Path, text: str) -> None:
    """Puts `text` into `path` in one step, readable by its owner alone; makes the folder too, likewise private."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
        raise StorageError(
            f"{path} cannot be written ({error.strerror}): make room, or make its folder yours"
        ) from error


def read(path: Path) -> str | None:
    """What `path` holds, None where it is not; StorageError when it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise StorageError(f"{path} cannot be read ({type(error).__name__}): repair or remove it") from error
