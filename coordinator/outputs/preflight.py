"""What can be found wrong before any work: outputs that cannot be written, outputs that are inputs, full disks."""

from __future__ import annotations

import importlib.util
import os
import shutil
import stat
from collections.abc import Sequence
from pathlib import Path

from coordinator.intake.formats import TABLE_SUFFIXES
from coordinator.outputs.results import errors_file, is_parquet
from coordinator.outputs.vector_files import NPY, ids_file, origin_file
from fleet.errors import StorageError, UsageError
from fleet.packages import PARQUET_EXTRA, how_to_install

#: Ledger and output together took 1.5-3 times the input's size over the demo corpus and 100k rows of 500 tokens.
SPACE_PER_INPUT = 3
#: Kept free whatever the input, bytes.
SPARE_BYTES = 64 << 20


def check_output(output: str, inputs: Sequence[str]) -> None:
    """Raises UsageError or StorageError when `output`, or a file that is written beside it, could not be written, or
    is an input."""
    if output == "-":
        return
    path = Path(output)
    if path.suffix.lower() in TABLE_SUFFIXES:
        raise UsageError(
            f"{output}: answers are written as JSONL or Parquet, name a file that ends in .jsonl or .parquet"
        )
    if is_parquet(output) and importlib.util.find_spec("pyarrow") is None:
        raise UsageError(f"a Parquet output needs pyarrow: {how_to_install(PARQUET_EXTRA)}")
    _check_place(path, inputs)
    beside = (ids_file(output), origin_file(output)) if output.lower().endswith(NPY) else ()
    for place in (errors_file(output), *beside):
        _check_place(place, inputs)


def _check_place(path: Path, inputs: Sequence[str]) -> None:
    try:
        path.stat()
    except FileNotFoundError:
        pass
    except OSError as error:
        raise UsageError(f"{path} cannot be written ({error.strerror}): choose another output") from error
    if path.is_dir():
        raise UsageError(f"{path} is a folder: give the file to write, like {path / 'answers.jsonl'}")
    folder = path.absolute().parent
    if not folder.is_dir():
        raise UsageError(f"the folder {folder} of the output does not exist: make it, or choose another")
    if not os.access(folder, os.W_OK):
        raise StorageError(f"the folder {folder} cannot be written: choose another output")
    for name in inputs:
        if name != "-" and same_file(Path(name), path):
            raise UsageError(f"{path} is also an input: it would be overwritten; choose another output")
        if name != "-" and Path(name).is_dir() and Path(name).resolve() in path.resolve().parents:
            raise UsageError(f"{path} lies in the input folder {name}: the next run would read it; choose another")


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
    """Size of a file, or of the files in a folder; what cannot be looked at counts for nothing."""
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(_size(file) for file in files)


def _size(file: Path) -> int:
    try:
        about = file.stat()
    except OSError:  # a link to nothing, or deleted meanwhile
        return 0
    return about.st_size if stat.S_ISREG(about.st_mode) else 0
