"""Columns of a Parquet output: what type one has whose values come from JSON objects. Pure.

A field becomes a column of its values' type where all share one (bool, integer, float, text), else of JSON text.
"""

from __future__ import annotations

import json
from typing import Any

#: A kind, or empty while only nulls were seen.
Kind = str
_INT64 = range(-(1 << 63), 1 << 63)


def widened(kind: Kind | None, value: Any) -> Kind:
    """The kind of a column of `kind`, None for one not seen yet, once it holds `value` too."""
    if value is None:
        return kind or ""
    new = _kind(value)
    if not kind or kind == new:
        return new
    return "float" if {kind, new} == {"integer", "float"} else "json"


def _kind(value: Any) -> Kind:
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        return "integer" if value in _INT64 else "json"
    if isinstance(value, float):
        return "float"
    return "text" if isinstance(value, str) else "json"


def arrow_type(pyarrow: Any, kind: Kind) -> Any:
    """The column's type in `pyarrow`, the module."""
    types = {"boolean": pyarrow.bool_(), "integer": pyarrow.int64(), "float": pyarrow.float64()}
    return pyarrow.list_(pyarrow.string()) if kind == "texts" else types.get(kind, pyarrow.string())


def cell(value: Any, kind: Kind) -> Any:
    """`value` as the column holds it."""
    if value is None:
        return None
    if kind == "json":
        return json.dumps(value, ensure_ascii=False)
    return float(value) if kind == "float" else value
