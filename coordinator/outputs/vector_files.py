"""Outputs of vectors that are not lines: a Parquet table, or a NumPy matrix with its ids and its description beside.

Both say which model made them, so that nobody compares vectors of two.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path

from coordinator.intake.vector_options import CHUNK, ERROR
from coordinator.ledger.ledger import Ledger
from coordinator.outputs.draft import draft
from coordinator.outputs.vector_lines import dtype_of
from coordinator.outputs.vector_matrix import VectorMatrix
from coordinator.outputs.vector_table import VectorTable
from coordinator.records import Answer, JobRecord
from fleet.encoder_folder import read_encoder
from fleet.errors import FleetError

NPY = ".npy"


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """What made the vectors of a file."""

    #: folder or hub id
    model: str
    #: sha256 of the weight files, hex
    model_hash: str
    #: `EncoderFolder.hash`, empty where the folder could not be read any more
    encoder_hash: str
    dtype: str
    #: numbers in each vector
    dimensions: int
    #: vectors in the file
    rows: int

    def as_json(self) -> bytes:
        """As the file has it."""
        return json.dumps(asdict(self)).encode()


def ids_file(output: str) -> Path:
    """Whose vector each row of the matrix `output` is."""
    return Path(f"{output}.ids.jsonl")


def origin_file(output: str) -> Path:
    """What made the matrix `output`."""
    return Path(f"{output}.meta.json")


def write_vectors(
    ledger: Ledger, job: JobRecord, output: str, *, openai: bool, pass_on: Callable[[Callable[[Answer], None]], None]
) -> None:
    """Writes the job's vectors to `output`, .npy or .parquet; `pass_on` gives every answer to what it is given."""
    if output.lower().endswith(NPY):
        _write_matrix(job, output, openai=openai, pass_on=pass_on)
    else:
        _write_table(ledger, job, output, openai=openai, pass_on=pass_on)


def _write_table(
    ledger: Ledger, job: JobRecord, output: str, *, openai: bool, pass_on: Callable[[Callable[[Answer], None]], None]
) -> None:
    known = islice(ledger.answers(job.id), ledger.counts(job.id).requests)
    long = json.loads(job.spec.options).get("long") or (ERROR if openai else CHUNK)
    with ExitStack() as stack:
        paper = stack.enter_context(draft(Path(output)))
        table = VectorTable(paper.stream, known, dtype=dtype_of(job), several=openai, long=long)
        stack.enter_context(table)
        pass_on(table.add)
        table.close(origin(job, dimensions=table.dimensions, rows=table.rows + table.waiting).as_json())
        paper.keep()


def _write_matrix(
    job: JobRecord, output: str, *, openai: bool, pass_on: Callable[[Callable[[Answer], None]], None]
) -> None:
    with draft(ids_file(output)) as ids, draft(origin_file(output)) as about, draft(Path(output)) as paper:
        matrix = VectorMatrix(paper.stream, ids.stream, dtype=dtype_of(job), several=openai)
        pass_on(matrix.add)
        matrix.close()
        about.stream.write(origin(job, dimensions=matrix.dimensions, rows=matrix.rows).as_json() + b"\n")
        ids.keep()
        about.keep()
        paper.keep()


def origin(job: JobRecord, *, dimensions: int, rows: int) -> Origin:
    """What made the vectors of `job`."""
    try:
        encoder_hash = read_encoder(Path(job.spec.model)).hash
    except FleetError:
        encoder_hash = ""
    return Origin(
        model=job.spec.model,
        model_hash=job.spec.model_hash,
        encoder_hash=encoder_hash,
        dtype=dtype_of(job),
        dimensions=dimensions,
        rows=rows,
    )
