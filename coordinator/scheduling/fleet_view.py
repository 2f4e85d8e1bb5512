"""What the policy sees and what it may say: the fleet at one moment in, decisions out. Plain values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

#: Rows that an engine is taken to decode together until it is loaded.
FIRST_CAP = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerView:
    """A live worker as the policy sees it."""

    id: str
    #: rows that decode together at most; 0 until its engine is loaded
    cap: int
    #: prompt + new tokens the longest row it can run may have; 0 until its engine is loaded
    longest_tokens: int
    #: new tokens per second of a full batch
    decode_tps: float
    prefill_tps: float
    #: speed reports so far
    reports: int
    #: seconds of work dispatched and not finished
    outstanding_s: float
    #: rows dispatched and not finished
    rows: int = 0
    #: new tokens per second of a row that decodes alone; 0 while not known
    solo_tps: float = 0.0
    #: whether it may get rows of the job in question
    may_take: bool = True

    @property
    def queued_s(self) -> float:
        """Seconds of work that waits for a place in the batch, about."""
        return self.outstanding_s * max(self.rows - self.cap, 0) / self.rows if self.rows else self.outstanding_s

    @property
    def free(self) -> int:
        """Places in the batch that nothing dispatched will take; some while no engine is loaded."""
        return max((self.cap or FIRST_CAP) - self.rows, 0)

    def row_tps(self, batch: int) -> float:
        """New tokens per second of one row among `batch`: a step takes a fixed time and a bit for each row."""
        full_s = max(self.cap, 1) / self.decode_tps
        if self.cap < 2:
            return 1 / full_s
        alone_s = min(1 / self.solo_tps if self.solo_tps else full_s / 2, full_s)
        return 1 / (alone_s + (full_s - alone_s) * (min(batch, self.cap) - 1) / (self.cap - 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolView:
    """What is left to dispatch."""

    rows: int
    #: prompt tokens
    input_tokens: int
    #: expected new tokens
    output_tokens: float
    #: prompt tokens that no shared prefix saves, as a share
    computed_share: float = 1.0
    #: prompt + max_new tokens of the shortest row, or less
    shortest_tokens: int = 0
    #: those of the rows that were given back, which go first
    back: int = 0

    @property
    def computed_tokens(self) -> float:
        """Prompt tokens an engine has to compute."""
        return self.input_tokens * self.computed_share

    @property
    def mean_tokens(self) -> float:
        """Tokens of a mean row, prompt and answer."""
        return (self.input_tokens + self.output_tokens) / max(self.rows, 1)

    def fits(self, worker: WorkerView) -> bool:
        """Whether any row of it fits the worker's memory, about."""
        return self.rows > 0 and (not worker.longest_tokens or self.shortest_tokens <= worker.longest_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardView:
    """A shard that its worker's agent has not taken, so that it can be taken back."""

    id: str
    worker: str
    rows: int
    #: prompt tokens to compute
    input_tokens: float
    #: expected new tokens
    output_tokens: float
    #: prompt + max_new tokens of its longest row
    longest_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RowView:
    """A row that a worker's agent has, decoding or about to; one with copies comes once for each."""

    id: int
    worker: str
    #: prompt tokens to compute
    input_tokens: float
    #: new tokens expected in all, and still to come
    output_tokens: float
    left_tokens: float
    #: prompt + max_new tokens
    longest_tokens: int = 0
    #: False while it waits for a place in the batch
    running: bool = True
    #: True when another worker has it too
    copied: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetView:
    """Everything the policy decides from, of one job."""

    #: those that have rows of it, and those that may get some
    workers: Sequence[WorkerView]
    pool: PoolView
    #: what may be stolen, oldest first; only looked at when the pool holds nothing for somebody
    shards: Sequence[ShardView] = ()
    #: what may be copied; likewise
    rows: Sequence[RowView] = ()
    #: rows that may still be copied
    copies_left: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """A shard to cut from the pool for a worker."""

    worker: str
    rows: int
    #: prompt + max_new tokens, about
    tokens: int
    #: longest row allowed, prompt + max_new tokens; None for no limit
    longest: int | None
    #: of rows given back alone, and before everything else in the worker's queue
    ahead: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Steal:
    """A whole shard to take back from a worker and send to another."""

    shard: str
    source: str
    target: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """A row to send to a second worker; the first result wins."""

    row: int
    source: str
    target: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Recall:
    """Rows that a worker's agent has and does not run: to call off there and send to another."""

    rows: tuple[int, ...]
    source: str
    target: str


Decision = Cut | Steal | Recall | Copy


def seconds(worker: WorkerView, input_tokens: float, output_tokens: float) -> float:
    """Time this work takes on `worker` in a full batch."""
    return output_tokens / worker.decode_tps + input_tokens / worker.prefill_tps
