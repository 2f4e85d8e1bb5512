"""Everything that crosses a process border, as frozen dataclasses; `codec` turns them into bytes and back.

Tokens travel as bytes: uint32, little endian. Row ids are the ledger's integers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from fleet.job import Finish, Sampling


class WorkerState(StrEnum):
    """What a worker is doing, as its beat says it."""

    IDLE = "idle"
    LOADING = "loading model"
    WORKING = "working"
    #: working, with a pause to time batch sizes
    MEASURING = "measuring knee"
    #: working, much slower than this machine usually is
    THROTTLED = "throttled"
    #: takes no work for now; the beat's `note` says why
    PAUSED = "paused"
    STOPPING = "stopping"


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """The machine a worker runs on, for people to read."""

    #: as its owner named it
    name: str = ""
    chip: str = ""
    #: memory of the machine, bytes
    memory_bytes: int = 0
    #: mlx-fleet's version there
    version: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowWork:
    """One computation to do."""

    #: the ledger's row id
    id: int
    #: 16 bytes, see `fleet.job.KeyMaker`
    key: bytes
    #: prompt after the shard's prefix, uint32 little endian, never empty
    tokens: bytes
    #: new tokens at most, >= 1; 0 where the row is embedded
    max_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """Rows cut for one worker: one RQ job, one model, one sampling group, one prefix."""

    #: `<wid>-<n>`, never used twice
    id: str
    #: the ledger's job id
    job: int
    #: folder or hub id
    model: str
    #: sha256 of the weight files, hex; an engine of another hash refuses the shard
    model_hash: str
    sampling: Sampling
    #: shared first tokens of every row, uint32 little endian, may be empty
    prefix: bytes
    rows: tuple[RowWork, ...]
    #: what the rows' keys are salted with, see `fleet.job.salted`; seeded draws follow from the bare keys
    salt: str = ""
    #: runs with nothing else in the batch, so that a crash is explained
    exclusive: bool = False
    #: rows decoding together at most, 0 for the engine's own cap
    cap: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RowResult:
    """One row's outcome."""

    id: int
    text: str
    finish: Finish
    #: prompt tokens, the prefix included
    input_tokens: int
    output_tokens: int
    #: why the row could not be run; set only when `finish` is ERROR
    error: str | None = None
    #: what a thinking model wrote before its answer, without the tags; its tokens are among `output_tokens`
    reasoning: str = ""
    #: of an embedding: its numbers, little endian, in the dtype that the row's sampling names; else empty
    vector: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Counters of an engine since it started; rates and means are differences of two of them."""

    #: new tokens kept
    output_tokens: int = 0
    #: prompt tokens computed (a shared prefix counts once)
    prompt_tokens: int = 0
    #: prompt tokens that rows took from a shared prefix that was computed already
    shared_tokens: int = 0
    #: prompt tokens computed only to make rows equally long
    padding_tokens: int = 0
    #: decode steps
    steps: int = 0
    #: sum over decode steps of the rows in the batch; / steps is the mean batch
    step_rows: int = 0
    #: sum over decode steps of the cap in force; step_rows / step_cap is the occupancy
    step_cap: int = 0
    #: seconds spent in decode steps
    decode_s: float = 0.0
    #: seconds spent on prompts
    prefill_s: float = 0.0
    #: most bytes MLX held at once
    peak_bytes: int = 0


# -- agent -> engine -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancel:
    """Forget these rows, wherever they are; no result is owed for them."""

    rows: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SetCap:
    """From now on at most this many rows decode together; 0 is the engine's own choice."""

    rows: int


# -- engine -> agent -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """The model is loaded and tested. Said again whenever the cap changes."""

    model_hash: str
    #: rows of the present length decoding together at most, by the engine's own choice
    cap: int
    #: bytes of KV a token takes in this model
    kv_bytes: int
    #: bytes that rows may take together
    budget_bytes: int
    #: tokens the model can hold, prompt and answer
    context_tokens: int
    #: why this model runs at batch 1, empty when it batches
    single: str = ""
    #: new tokens and prompt tokens per second, as measured in an earlier run; 0 where nothing was
    decode_tps: float = 0.0
    prefill_tps: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """The engine cannot serve this model at all and exits; the sentence is for the person."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted:
    """Sent before these rows' prompts are computed: from here on they can be to blame for a crash."""

    rows: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pulse:
    """Every second while the engine's loop turns, so that a stall is seen."""

    #: (row, new tokens so far) of the rows in the batch
    running: tuple[tuple[int, int], ...]
    #: rows taken but not yet in the batch
    waiting: int
    figures: Figures
    #: decoding pauses for a few seconds to time batch sizes
    measuring: bool = False
    #: decoding has been much slower than usual for a while
    throttled: bool = False
    #: decoding speed now over the measured one, 0 while that is not known
    pace: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """Rows that ended; also what an agent puts in its results stream."""

    rows: tuple[RowResult, ...]


# -- agent -> coordinator, besides Finished --------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Crashed:
    """An engine died; its batch is given back. Rows that only waited stay with the agent."""

    #: rows in the batch, all suspects
    rows: tuple[int, ...]
    #: those of them whose prompts were started last
    latest: tuple[int, ...]
    #: signal or error, in words
    reason: str
    #: rows decoding together at most when it happened
    cap: int
    #: names this report, which may be told again to a wiped broker but counts once
    id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Returned:
    """Rows given back without a result and without blame (a stop, a model that cannot be loaded)."""

    rows: tuple[int, ...]
    #: why the worker cannot run them, empty when it is only stopping
    reason: str = ""
    #: names this report, which may be told again to a wiped broker but counts once
    id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """A worker's lease value, renewed every `config.BEAT_S`."""

    worker: str
    #: new for each start of the worker process
    nonce: str
    #: the broker epoch this worker has seen, see `keys.EPOCH`
    epoch: str
    state: WorkerState
    #: shards taken from the queue and not finished
    shards: tuple[str, ...]
    #: (row, new tokens so far) of the rows in the batch
    running: tuple[tuple[int, int], ...]
    #: rows taken but not yet in the batch
    waiting: int
    #: cap, KV and memory of the loaded engine
    engine: Ready | None
    figures: Figures = field(default_factory=Figures)
    #: decoding speed now over the measured one, 0 while that is not known
    pace: float = 0.0
    host: Host = field(default_factory=Host)
    #: why the worker is in this state, where the word alone does not say it ("battery")
    note: str = ""


# -- coordinator -> agent (control stream), besides Cancel and SetCap -------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """Take no more shards, finish the rows in the batch, give the rest back, then exit."""


#: Wire tags. A tag is never used again for something else.
TAGS: dict[int, type] = {
    1: Shard,
    2: Finished,
    3: Crashed,
    4: Returned,
    5: Beat,
    6: Cancel,
    7: SetCap,
    8: Ready,
    9: Refused,
    10: Admitted,
    11: Pulse,
    12: Stop,
}

Message = Shard | Finished | Crashed | Returned | Beat | Cancel | SetCap | Ready | Refused | Admitted | Pulse | Stop
