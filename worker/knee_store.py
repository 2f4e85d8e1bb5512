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

from worker.knee import Curve, Prefill, PrefillSample, Sample

#: Raised when what is stored, or how the decode loop works, changes: older figures are then thrown away.
FORMAT = 1


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

    def load(self) -> dict[int, Curve]:
        """The stored curves by bucket; none when the file is missing, broken or of another format."""
        entry = _entries(self._path).get(_name(self._subject))
        if not isinstance(entry, dict) or entry.get("mlx") != self._subject.mlx:
            return {}
        curves = (_curve(plain) for plain in entry.get("curves", []))
        return {curve.bucket_tokens: curve for curve in curves if curve is not None}

    def save(self, curves: Mapping[int, Curve]) -> None:
        """Replaces what is stored of these buckets; where the file cannot be written, nothing happens."""
        if self._path is None:
            return
        kept = {**self.load(), **curves}
        entry = {"mlx": self._subject.mlx, "curves": [asdict(kept[bucket]) for bucket in sorted(kept)]}
        self._write({**_entries(self._path), _name(self._subject): entry})

    def forget(self) -> None:
        """Throws the subject's curves away."""
        entries = _entries(self._path)
        if entries.pop(_name(self._subject), None) is not None:
            self._write(entries)

    def _write(self, entries: dict[str, Any]) -> None:
        if self._path is None:
            return
        draft = self._path.with_suffix(f".{os.getpid()}.tmp")
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            draft.write_text(json.dumps({"format": FORMAT, "entries": entries}, indent=1))
            draft.replace(self._path)


def _name(subject: Subject) -> str:
    """MLX's version is not in it, so that a newer one's curves replace those of the older."""
    return f"{subject.model_hash} on {subject.machine}"


def _entries(path: Path | None) -> dict[str, Any]:
    if path is None:
        return {}
    try:
        stored = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    if not isinstance(stored, dict) or stored.get("format") != FORMAT or not isinstance(stored.get("entries"), dict):
        return {}
    entries: dict[str, Any] = stored["entries"]
    return entries


def _curve(plain: Any) -> Curve | None:
    """The curve that `asdict` made `plain`; None when it did not."""
    try:
        samples = tuple(Sample(**sample) for sample in plain["samples"])
        prefill = tuple(
            PrefillSample(setting=Prefill(**sample["setting"]), tps=sample["tps"]) for sample in plain["prefill"]
        )
        curve = Curve(**{**plain, "samples": samples, "prefill": prefill})
        sound = curve.bucket_tokens > 0 and curve.scale > 0 and all(s.rows > 0 and s.tps > 0 for s in samples)
        sound = sound and all(s.setting.rows > 0 and s.setting.tokens > 0 and s.tps > 0 for s in prefill)
        sound = sound and [s.rows for s in samples] == sorted({s.rows for s in samples})
    except (KeyError, TypeError):
        return None
    return curve if sound else None
