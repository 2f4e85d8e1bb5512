"""What was measured, on disk: curves by machine, model, MLX version and length bucket. Only a cache: lost is measured
again."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fleet import knees
from fleet.curve import Curve


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What a curve depends on besides the lengths."""

    #: see `machine.describe`
    machine: str
    #: sha256 of the weight files, hex
    model_hash: str
    mlx: str


class KneeStore:
    """The curves of one subject in a file that many share."""

    def __init__(self, path: Path | None, subject: Subject) -> None:
        """Without a `path` nothing is kept."""
        self._path = path
        self._subject = subject
        self._name = knees.entry_name(subject.model_hash, subject.machine)

    def load(self) -> dict[int, Curve]:
        """The stored curves by bucket; none when the file is missing, broken or of another format."""
        entry = knees.entries(self._path).get(self._name)
        if not isinstance(entry, dict) or entry.get("mlx") != self._subject.mlx:
            return {}
        return knees.curves(entry)

    def save(self, curves: Mapping[int, Curve]) -> None:
        """Replaces what is stored of these buckets; where the file cannot be written, nothing happens."""
        if self._path is None:
            return
        kept = {**self.load(), **curves}
        entry = {"mlx": self._subject.mlx, "curves": [asdict(kept[bucket]) for bucket in sorted(kept)]}
        self._write({**knees.entries(self._path), self._name: entry})

    def forget(self) -> None:
        """Throws the subject's curves away."""
        entries = knees.entries(self._path)
        if entries.pop(self._name, None) is not None:
            self._write(entries)

    def _write(self, entries: dict[str, Any]) -> None:
        if self._path is None:
            return
        draft = self._path.with_suffix(f".{os.getpid()}.tmp")
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            draft.write_text(json.dumps({"format": knees.FORMAT, "entries": entries}, indent=1))
            draft.replace(self._path)
