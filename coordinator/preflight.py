"""What can be found wrong before any work: outputs that cannot be written, outputs that are inputs, full disks."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from coordinator.formats import TABLE_SUFFIXES
from coordinator.results import is_parquet
from fleet.errors import StorageError, UsageError
from fleet.packages import PARQUET_EXTRA, how_to_install

#: Ledger and output together took 1.5-3 times the input's size over the demo corpus and 100k rows of 500 tokens.
SPACE_PER_INPUT = 3
#: Kept free whatever the input, bytes.
SPARE_BYTES = 64 << 20


def check_output(output: str, inputs: Sequence[str]) -> None:
    """Raises UsageError or StorageError when `output` could not be written, or is an input."""
    if output == "-":
        return
    path = Path(output)
    if path.suffix.lower() in TABLE_SUFFIXES:
        raise UsageError(
            f"{output}: answers are written as JSONL or Parquet, name a file that ends in .jsonl or .parquet"
        )
    if is_parquet(output) and importlib.util.find_spec("pyarrow") is None:
        raise UsageError(f"a Parquet output needs pyarrow: {how_to_install(PARQUET_EXTRA)}")
    if path.is_dir():
        raise UsageError(f"{output} is a folder: give the file to write, like {path / 'answers.jsonl'}")
    folder = path.absolute().parent
    if not folder.is_dir():
        raise UsageError(f"the folder {folder} of the output does not exist: make it, or choose another")
    if not os.access(folder, os.W_OK):
        raise StorageError(f"the folder {folder} cannot be written: choose another output")
    for name in inputs:
        if name != "-" and same_file(Path(name), path):
            raise UsageError(f"{output} is also an input: it would be overwritten; choose another output")
        if name != "-" and Path(name).is_dir() and Path(name).resolve() in path.resolve().parents:
            raise UsageError(f"{output} lies in the input folder {name}: the next run would read it; choose another")


def same_file(a: Path, b: Path) -> bool:
    """True when both names mean one file, links included."""
    try:
        return a.samefile(b)
    except OSError:
        return a.resolve() == b.resolve()


def check_space(folders: Sequence[Path], inputs: Sequence[str]) -> None:
    """Raises StorageError when a folder's disk has too little room for a job over `inputs`."""
    need = SPARE_BYTES + SPACE_PER_INPUT * sum(input_bytes(Path(name)) for name in inputs if name != "-")
    for folder in folders:
        free = shutil.disk_usage(folder).free
        if free < need:
            raise StorageError(
                f"{folder} has {free >> 20} MB free and this job may need {need >> 20} MB: "
                "free some, or use --state-dir and -o on another disk"
            )


def input_bytes(path: Path) -> int:
    """Size of a file, or of the files in a folder."""
    if path.is_dir():
        return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    return path.stat().st_size if path.exists() else 0
