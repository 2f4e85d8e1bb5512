"""Vectors that were written, read again: block by block, for the exact nearest neighbours of one."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from coordinator.outputs.answer_table import import_arrow
from coordinator.outputs.results import PARQUET
from coordinator.outputs.vector_files import NPY, Origin, ids_file, origin_file
from coordinator.outputs.vector_table import METADATA
from fleet.errors import UsageError

#: Vectors in memory at once.
BLOCK_ROWS = 8_192

Block = NDArray[np.floating[Any]]


class VectorFile(Protocol):
    """An output of `fleet run embed`."""

    origin: Origin

    def blocks(self) -> Iterator[Block]:
        """The vectors, some rows at a time."""

    def about(self, rows: Sequence[int]) -> list[dict[str, Any]]:
        """What the file says of these rows, in the order asked for; fields without a value are left out."""


def open_vectors(path: str) -> VectorFile:
    """The vectors in `path`; UsageError when it holds none that say which model made them."""
    if not Path(path).is_file():
        raise UsageError(f"there is no file {path}: give an output of `fleet run embed`, .parquet or .npy")
    if path.lower().endswith(NPY):
        return MatrixFile(path)
    if path.lower().endswith(PARQUET):
        return TableFile(path)
    raise UsageError(f"{path} is neither .parquet nor .npy: write one with `fleet results JOB -o vectors.parquet`")


class TableFile:
    """A Parquet file."""

    def __init__(self, path: str) -> None:
        arrow = import_arrow()
        try:
            self._file = arrow.parquet.ParquetFile(path)
        except (arrow.ArrowException, OSError) as error:
            raise UsageError(f"{path} cannot be read as Parquet: {error}") from error
        self.origin = _origin(path, (self._file.metadata.metadata or {}).get(METADATA))

    def blocks(self) -> Iterator[Block]:
        for batch in self._file.iter_batches(batch_size=BLOCK_ROWS, columns=["vector"]):
            flat: Block = batch.column(0).flatten().to_numpy(zero_copy_only=False)
            yield flat.reshape(len(batch), self.origin.dimensions)

    def about(self, rows: Sequence[int]) -> list[dict[str, Any]]:
        names = [name for name in self._file.schema_arrow.names if name != "vector"]
        found: dict[int, dict[str, Any]] = {}
        first = 0
        for group in range(self._file.num_row_groups):
            size = self._file.metadata.row_group(group).num_rows
            here = [row for row in rows if first <= row < first + size]
            if here:
                table = self._file.read_row_group(group, columns=names)
                taken = table.take([row - first for row in here]).to_pylist()
                found |= {row: _told(fields) for row, fields in zip(here, taken, strict=True)}
            first += size
        return [found[row] for row in rows]


class MatrixFile:
    """A NumPy file with its ids and its description beside it."""

    def __init__(self, path: str) -> None:
        self._path = path
        try:
            about = origin_file(path).read_bytes()
        except OSError:
            about = None
        self.origin = _origin(path, about)
        try:
            self._matrix: Block = np.load(path, mmap_mode="r")
        except (OSError, ValueError, EOFError) as error:
            raise UsageError(f"{path} cannot be read as a NumPy matrix: {error}") from error
        if self._matrix.shape != (self.origin.rows, self.origin.dimensions):
            raise UsageError(f"{path} is not the matrix that {origin_file(path)} tells of: write both again")

    def blocks(self) -> Iterator[Block]:
        for start in range(0, len(self._matrix), BLOCK_ROWS):
            yield self._matrix[start : start + BLOCK_ROWS]

    def about(self, rows: Sequence[int]) -> list[dict[str, Any]]:
        found: dict[int, dict[str, Any]] = {}
        last = 0
        try:
            with ids_file(self._path).open(encoding="utf-8") as lines:
                for row in sorted(set(rows)):
                    found[row] = _told(json.loads(next(islice(lines, row - last, None))))
                    last = row + 1
        except (OSError, ValueError, StopIteration) as error:
            raise UsageError(f"{ids_file(self._path)} does not tell whose the vectors are: write both again") from error
        return [found[row] for row in rows]


def nearest(blocks: Iterable[Block], query: Block, count: int) -> list[tuple[float, int]]:
    """(cosine, row) of the `count` vectors nearest to `query`, nearest first."""
    wanted = query.astype(np.float32) / np.linalg.norm(query.astype(np.float64))
    scores, rows = np.empty(0, np.float32), np.empty(0, np.int64)
    first = 0
    for block in blocks:
        numbers = block.astype(np.float32)
        cosines = (numbers @ wanted) / np.sqrt(np.einsum("ij,ij->i", numbers, numbers))
        scores = np.concatenate([scores, cosines.astype(np.float32)])
        rows = np.concatenate([rows, np.arange(first, first + len(block))])
        best = np.argsort(-scores, kind="stable")[:count]
        scores, rows = scores[best], rows[best]
        first += len(block)
    return list(zip(scores.tolist(), rows.tolist(), strict=True))


def _origin(path: str, about: bytes | None) -> Origin:
    try:
        fields = json.loads(about or b"null")
        return Origin(**fields)
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"{path} does not say which model made its vectors: only outputs of `fleet run embed` can be searched"
        ) from error


def _told(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}
