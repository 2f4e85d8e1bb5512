"""What passes between intake, ledger, backlog and results inside the coordinator."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path

from fleet.job import Finish, JobState, RequestState, Sampling, Task


class Shape(IntEnum):
    """How a request's rows make its answer."""

    #: every part is an answer (one for most requests, several for a list of prompts)
    EACH = 0
    #: parts are summarized, then their summaries, until one is left: the last part is the answer
    REDUCE = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where a request came from, for errors."""

    file: str
    #: 1-based line or row; 0 when the whole file is the request
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.line else self.file


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Which piece of which text of its request a row is; rows that are the whole of their text have none."""

    #: the text's number in the request, from 0
    text: int
    #: the piece is [start, end) of the text, characters
    start: int
    end: int
    #: the rest of the text is left out, which has so many tokens in all; 0 where other rows have the rest
    cut_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRow:
    """A computation as intake makes it."""

    #: 16 bytes, see `fleet.job.KeyMaker`
    key: bytes
    #: whole prompt, uint32 little endian
    tokens: bytes
    max_tokens: int
    sampling: Sampling
    #: of a piece of a text that is embedded
    place: Place | None = None

    @property
    def length(self) -> int:
        """Prompt tokens."""
        return len(self.tokens) // 4


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRequest:
    """One line of the backlog after intake: rows to compute, or an error."""

    #: None for a line too broken to have one
    custom_id: str | None
    source: Source
    #: empty exactly when `error` is set
    rows: tuple[NewRow, ...] = ()
    error: str | None = None
    shape: Shape = Shape.EACH
    #: JSON object of the input's other fields, carried through to a flat output line; empty for none
    extra: str = ""
    #: the request's url, which names the response's form, for an OpenAI batch line; empty for other inputs
    url: str = ""
    #: the line names no id: `custom_id` was made here, and gives way to a line that names the same
    made_id: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """What identifies a job: the same command gives an equal spec, and takes the same job up again."""

    task: Task
    #: as given, for people
    model: str
    #: sha256 of the weight files, hex
    model_hash: str
    #: absolute paths, or "-"
    inputs: tuple[str, ...]
    #: absolute path, or "-"
    output: str
    #: JSON object of every option that changes which rows there are or what they answer
    options: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecord:
    """A job as the ledger has it."""

    id: int
    spec: JobSpec
    state: JobState
    #: unix seconds
    created: float
    #: True once every line of the input is in the ledger
    intake_complete: bool
    #: says whether the input files are still those taken in (size and mtime of each)
    signature: str
    #: what the job's row keys were salted with; empty unless it was begun with `--fresh`
    salt: str = ""
    #: higher goes first
    priority: int = 0
    #: a fleet works on it, and takes it up again by itself
    submitted: bool = False
    #: why, for one that failed
    problem: str = ""

    def told(self, text: str) -> str:
        """`text` as it may leave this machine: files that were sent here are named as they were by who sent them."""
        for path in self.spec.inputs if self.submitted else ():
            text = text.replace(path, Path(path).name)
        return text


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenRow:
    """A row still to be computed, as much of it as planning needs."""

    id: int
    #: prompt tokens
    length: int
    max_tokens: int
    #: the ledger's id of its sampling group
    sampling: int
    #: the job it was taken from the pool for, 0 in a pool
    job: int = 0

    def of_job(self, job: int) -> OpenRow:
        """The row as taken for `job`."""
        return OpenRow(id=self.id, length=self.length, max_tokens=self.max_tokens, sampling=self.sampling, job=job)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRow:
    """A row as a shard needs it."""

    id: int
    key: bytes
    #: uint32, little endian
    tokens: bytes
    max_tokens: int
    sampling: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """How far a job is."""

    requests: int = 0
    done: int = 0
    error: int = 0
    quarantined: int = 0
    input_tokens: int = 0
    output_tokens: int = 0

    @property
    def failed(self) -> int:
        """Requests that ended without an answer."""
        return self.error + self.quarantined

    @property
    def open(self) -> int:
        """Requests without a terminal state."""
        return self.requests - self.done - self.failed


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStatus:
    """A job and how far it is."""

    record: JobRecord
    counts: Counts


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleaned:
    """What forgetting jobs removed."""

    jobs: int = 0
    requests: int = 0
    rows: int = 0
    freed_bytes: int = 0
    #: jobs for which all rows were kept: they are reading their input again and may need any
    needed_by: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One row's outcome inside a request."""

    text: str
    finish: Finish
    input_tokens: int
    output_tokens: int
    #: what a thinking model wrote before its answer
    reasoning: str = ""
    #: of a text that is embedded, see `RowResult.vector`; empty where vectors were not asked for
    vector: bytes = b""
    place: Place | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A request with its outcome, as results writes it."""

    ordinal: int
    custom_id: str | None
    source: Source
    state: RequestState
    error: str | None
    extra: str
    url: str
    shape: Shape
    #: parts in order, those that are done; of a REDUCE request only the last level's
    parts: tuple[Part, ...] = field(default=())
    #: tokens of every row that is done, lower levels included
    input_tokens: int = 0
    output_tokens: int = 0
