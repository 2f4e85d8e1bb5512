"""How much work each worker gets, and in what pieces. Pure: a view of the fleet in, cuts out.

Work is measured in seconds on the worker that would do it: `out / decode_tps + in / prefill_tps` (both rates over
the whole batch). A worker is kept ahead by a window of `clamp(R/2, lo, hi)` seconds, R its share of what is left,
and the window goes out as several shards, so that whole shards can be taken back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

#: No window is shorter than this many seconds of work ...
LOW_S = 5.0
#: ... nor longer than this, ...
HIGH_S = 120.0
#: ... nor, until a worker has told its speed often enough, than this.
FIRST_HIGH_S = 30.0
FIRST_REPORTS = 3
#: A shard is at most this many seconds of work, or half a batch.
SHARD_S = 10.0
#: All windows together stay under this in Redis, bytes of tokens.
WINDOWS_BYTES = 32 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerView:
    """A live worker as the policy sees it."""

    id: str
    #: rows that decode together at most; 0 until its engine is loaded
    cap: int
    #: prompt + new tokens the longest row it can run may have; 0 until its engine is loaded
    longest_tokens: int
    decode_tps: float
    prefill_tps: float
    #: speed reports so far
    reports: int
    #: seconds of work dispatched and not finished
    outstanding_s: float


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

    @property
    def computed_tokens(self) -> float:
        """Prompt tokens an engine has to compute."""
        return self.input_tokens * self.computed_share

    @property
    def mean_tokens(self) -> float:
        """Tokens of a mean row, prompt and answer."""
        return (self.input_tokens + self.output_tokens) / max(self.rows, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """A shard to cut from the pool for a worker."""

    worker: str
    rows: int
    #: prompt + max_new tokens, about
    tokens: int
    #: longest row allowed, prompt + max_new tokens; None for no limit
    longest: int | None


def seconds(worker: WorkerView, input_tokens: float, output_tokens: float) -> float:
    """Time this work takes on `worker` in a full batch."""
    return output_tokens / worker.decode_tps + input_tokens / worker.prefill_tps


def cuts(workers: Sequence[WorkerView], pool: PoolView) -> list[Cut]:
    """The shards to send now."""
    if not pool.rows:
        return []
    budget_bytes = WINDOWS_BYTES / max(len(workers), 1)
    fleet_speed = sum(1 / _row_s(worker, pool) for worker in workers)
    made: list[Cut] = []
    for worker in workers:
        row_s = _row_s(worker, pool)
        share = (1 / row_s) / fleet_speed
        window_s = _window_s(worker, row_s, share * pool.rows * row_s)
        shard_s = max(SHARD_S, _half_batch(worker) * row_s)
        if worker.outstanding_s > max(window_s - shard_s, window_s / 2):
            continue
        rows = min((window_s - worker.outstanding_s) / row_s, budget_bytes / (4 * pool.mean_tokens))
        made += _split(worker, round(max(rows, 1)), max(round(shard_s / row_s), 1), pool)
    return made


def _split(worker: WorkerView, rows: int, shard_rows: int, pool: PoolView) -> list[Cut]:
    pieces = [min(shard_rows, rows - start) for start in range(0, rows, shard_rows)]
    return [
        Cut(
            worker=worker.id,
            rows=piece,
            # twice the mean: the longest rows go first and are longer than it
            tokens=int(2 * piece * pool.mean_tokens) + 1,
            longest=worker.longest_tokens or None,
        )
        for piece in pieces
    ]


def _row_s(worker: WorkerView, pool: PoolView) -> float:
    return max(seconds(worker, pool.computed_tokens, pool.output_tokens) / pool.rows, 1e-6)


def _half_batch(worker: WorkerView) -> int:
    return max(worker.cap // 2, 1)


def _window_s(worker: WorkerView, row_s: float, left_s: float) -> float:
    """`clamp(R/2, lo, hi)`, with two batches at least so that the engine never waits for us."""
    high = HIGH_S if worker.reports >= FIRST_REPORTS else FIRST_HIGH_S
    low = min(high, max(_half_batch(worker) * row_s, LOW_S))
    clamped = min(max(left_s / 2, low), high)
    return max(clamped, 2 * worker.cap * row_s)
