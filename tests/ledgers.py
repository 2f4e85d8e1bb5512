"""Builders of what a ledger holds, for the tests that need one."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable

import numpy as np

from coordinator.records import JobSpec, NewRequest, NewRow, OpenRow, Shape, Source
from fleet.job import Embedding, Finish, Sampling, Task
from fleet.messages import RowResult

GREEDY = Sampling()


def spec(output: str = "/out.jsonl", task: Task = Task.GENERATE, options: str = "{}") -> JobSpec:
    return JobSpec(
        task=task, model="/models/tiny", model_hash="ab", inputs=("/in.jsonl",), output=output, options=options
    )


def row(number: int, *, length: int = 3, max_tokens: int = 8, sampling: Sampling = GREEDY) -> NewRow:
    """The computation called `number`: equal numbers give equal keys."""
    tokens = struct.pack("<I", number) * length
    return NewRow(key=hashlib.sha256(tokens).digest()[:16], tokens=tokens, max_tokens=max_tokens, sampling=sampling)


def request(
    custom_id: str | None,
    *rows: int,
    line: int = 1,
    error: str | None = None,
    shape: Shape = Shape.EACH,
    extra: str = "",
    url: str = "",
    made_id: bool = False,
) -> NewRequest:
    """A request of the computations called `rows`."""
    return NewRequest(
        custom_id=custom_id,
        source=Source(file="/in.jsonl", line=line),
        rows=tuple(map(row, rows)),
        error=error,
        shape=shape,
        extra=extra,
        url=url,
        made_id=made_id,
    )


def done(number: int, text: str | None = None, finish: Finish = Finish.STOP) -> RowResult:
    """A result of the ledger's row `number`."""
    words = f"answer {number}" if text is None else text
    return RowResult(id=number, text=words, finish=finish, input_tokens=3, output_tokens=2)


def failed(number: int, error: str = "no room") -> RowResult:
    """The row `number` could not be run."""
    return RowResult(id=number, text="", finish=Finish.ERROR, input_tokens=0, output_tokens=0, error=error)


def all_done(rows: Iterable[OpenRow]) -> list[RowResult]:
    """A result for each."""
    return [done(opened.id) for opened in rows]


def text_row(number: int, *, dtype: str = "float32", dimensions: int = 0) -> NewRow:
    """The text called `number`, to be embedded."""
    embedding = Embedding(dtype=dtype, dimensions=dimensions)
    return row(number, max_tokens=0, sampling=Sampling(embedding=embedding))


def unit(number: int, *, dtype: str = "float32", dimensions: int = 8) -> bytes:
    """A vector of length 1, another for each number."""
    vector = np.random.default_rng(number).standard_normal(dimensions)
    return (vector / np.linalg.norm(vector)).astype(np.dtype(dtype).newbyteorder("<")).tobytes()


def embedded(number: int, vector: bytes | None = None) -> RowResult:
    """The vector of the ledger's row `number`."""
    return RowResult(
        id=number,
        text="",
        finish=Finish.STOP,
        input_tokens=3,
        output_tokens=0,
        vector=unit(number) if vector is None else vector,
    )
