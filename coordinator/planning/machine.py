"""This machine's memory, and which rows it holds."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from fleet.model import read_config, weight_files

#: Of a machine's memory: what its GPU may use (Metal's recommended working set on most Macs), and of that what is
#: planned with.
_WORKING_SHARE, _PLANNED_SHARE = 0.75, 0.85
#: Bytes a row takes over those of its KV alone, while rows join and leave.
_COPY_FACTOR = 2.0
_KV_DTYPE_BYTES = 2


def memory_bytes() -> int:
    """Memory of this machine, 0 when the system does not tell."""
    with suppress(ValueError, OSError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return 0


def longest_row(folder: Path, memory: int) -> int:
    """Tokens of about the longest row that a machine with `memory` bytes holds beside the model; 0 when not known."""
    kv_bytes = _kv_bytes(read_config(folder))
    if not memory or not kv_bytes:
        return 0
    weights = sum(file.stat().st_size for file in weight_files(folder))
    return max(int((_PLANNED_SHARE * _WORKING_SHARE * memory - weights) / (kv_bytes * _COPY_FACTOR)), 1)


def _kv_bytes(config: dict[str, Any]) -> int:
    """Of a token, with keys and values in all layers; 0 when the config does not tell."""
    config = config.get("text_config") or config
    heads = config.get("num_attention_heads")
    try:
        width = config.get("head_dim") or config["hidden_size"] // heads
        return int(2 * config["num_hidden_layers"] * (config.get("num_key_value_heads") or heads) * width) * (
            _KV_DTYPE_BYTES
        )
    except (KeyError, TypeError, ZeroDivisionError):
        return 0
