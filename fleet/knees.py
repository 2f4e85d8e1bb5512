"""`knees.json`: the curves measured on a machine, by model, machine, MLX version and length. Only a cache."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fleet.curve import Curve, Prefill, PrefillSample, Sample

#: Raised when what is stored, or how the decode loop works, changes: older figures are then thrown away.
FORMAT = 1
_ON = " on "


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The curves of a model on a machine."""

    #: see `worker.machine.describe`
    machine: str
    mlx: str
    #: by bucket
    curves: dict[int, Curve]


def measured(path: Path, model_hash: str) -> list[Measured]:
    """What is stored of a model, a machine each, the one that was measured first in front."""
    found = []
    for name, entry in entries(path).items():
        model, _, machine = name.partition(_ON)
        if model == model_hash and isinstance(entry, dict):
            found.append(Measured(machine=machine, mlx=str(entry.get("mlx", "")), curves=curves(entry)))
    return found


def entry_name(model_hash: str, machine: str) -> str:
    """The key of an entry. MLX's version is not in it, so that a newer one's curves replace those of the older."""
    return f"{model_hash}{_ON}{machine}"


def entries(path: Path | None) -> dict[str, Any]:
    """Everything stored, by `entry_name`; nothing where the file is missing, broken or of another format."""
    if path is None:
        return {}
    try:
        stored = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    if not isinstance(stored, dict) or stored.get("format") != FORMAT or not isinstance(stored.get("entries"), dict):
        return {}
    found: dict[str, Any] = stored["entries"]
    return found


def curves(entry: dict[str, Any]) -> dict[int, Curve]:
    """The sound curves of an entry, by bucket."""
    found = (_curve(plain) for plain in entry.get("curves", []))
    return {curve.bucket_tokens: curve for curve in found if curve is not None}


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
