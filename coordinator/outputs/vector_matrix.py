"""Vectors as a NumPy matrix, written as they come, and beside it a line for each row: whose vector it is."""

from __future__ import annotations

from typing import IO

import numpy as np

from coordinator.ledger.vectors import unpack
from coordinator.outputs.answer_lines import as_bytes
from coordinator.outputs.vector_lines import id_lines
from coordinator.outputs.vector_table import same_size
from coordinator.records import Answer
from fleet.errors import UsageError
from fleet.job import RequestState

#: Room for the header, which is known only at the end; NumPy wants a multiple of 64.
_HEADER_BYTES = 128
_MAGIC = b"\x93NUMPY\x01\x00"


class VectorMatrix:
    """Writes the vectors of answered requests to a stream that can be rewound, and the lines to another."""

    def __init__(self, stream: IO[bytes], lines: IO[bytes], *, dtype: str, several: bool) -> None:
        if not stream.seekable():
            raise UsageError("a .npy output must be a file: a pipe cannot be written from its end")
        self._stream = stream
        self._ids = lines
        self._dtype = dtype
        self._several = several
        self.dimensions = 0
        self.rows = 0
        stream.write(bytes(_HEADER_BYTES))

    def add(self, answer: Answer) -> None:
        """Appends the vectors of one request, none where it failed."""
        if answer.state is not RequestState.DONE:
            return
        for part, line in zip(answer.parts, id_lines(answer, several=self._several), strict=True):
            self.dimensions = same_size(self.dimensions, len(unpack(part.vector, self._dtype)))
            self._stream.write(part.vector)
            self._ids.write(as_bytes(line))
            self.rows += 1

    def close(self) -> None:
        """Writes the header."""
        self._stream.seek(0)
        self._stream.write(header(self.rows, self.dimensions, self._dtype))


def header(rows: int, dimensions: int, dtype: str) -> bytes:
    """The first bytes of a .npy file of version 1.0, as NumPy describes it, for `rows` x `dimensions` numbers."""
    described = {"descr": np.dtype(dtype).newbyteorder("<").str, "fortran_order": False, "shape": (rows, dimensions)}
    size = _HEADER_BYTES - len(_MAGIC) - 2
    return _MAGIC + size.to_bytes(2, "little") + repr(described).ljust(size - 1).encode() + b"\n"
