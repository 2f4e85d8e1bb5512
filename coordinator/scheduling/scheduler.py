"""How much work each worker gets, and in what pieces. Pure: a view of the fleet in, decisions out.

Work is measured in seconds on the worker that would do it: `out / decode_tps + in / prefill_tps` (both rates over
the whole batch). A worker is kept ahead by a window of `clamp(R/2, lo, hi)` seconds, R its share of what is left,
and the window goes out as several shards, so that whole shards can be taken back. Once the pool holds nothing for a
worker, `rebalance` takes from others what they will not come to soon.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import zip_longest

from coordinator.scheduling.fleet_view import Cut, Decision, FleetView, PoolView, WorkerView, seconds
from coordinator.scheduling.rebalance import rebalance

#: A worker whose queue is shorter than this many seconds of work is sent more. A result is two seconds old when it
#: is heard of and a shard takes up to one to arrive.
REFILL_S = 5.0
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


def decide(view: FleetView) -> list[Decision]:
    """What to do now; the same view gives the same decisions."""
    takers = [worker for worker in view.workers if worker.may_take]
    made = [*again(takers, view.pool), *cuts(takers, view.pool)]
    hungry = [worker for worker in takers if worker.queued_s < REFILL_S and not view.pool.fits(worker)]
    return [*made, *rebalance(view, hungry)]


def again(workers: Sequence[WorkerView], pool: PoolView) -> list[Cut]:
    """Rows that were given back, at once and however full the windows are: each worker gets its part by speed, and
    all get some of the first, which ran when they were lost."""
    takers = [worker for worker in workers if pool.back and pool.fits(worker)]
    speed = sum(1 / _row_s(worker, pool) for worker in takers)
    made: list[list[Cut]] = []
    left = pool.back
    for worker in sorted(takers, key=lambda worker: _row_s(worker, pool)):
        rows = min(math.ceil(pool.back / _row_s(worker, pool) / speed), left)
        made.append(_split(worker, rows, _half_batch(worker), pool))
        left -= rows
    in_turn = (cut for cuts in zip_longest(*made) for cut in cuts if cut is not None)
    return [replace(cut, ahead=True) for cut in in_turn]


def cuts(workers: Sequence[WorkerView], pool: PoolView) -> list[Cut]:
    """The shards to send now."""
    if not pool.rows:
        return []
    budget_bytes = WINDOWS_BYTES / max(len(workers), 1)
    fleet_speed = sum(1 / _row_s(worker, pool) for worker in workers)
    made: list[Cut] = []
    for worker in workers:
        if worker.queued_s >= REFILL_S or not pool.fits(worker):
            continue
        row_s = _row_s(worker, pool)
        share = (1 / row_s) / fleet_speed
        window_s = _window_s(worker, row_s, share * pool.rows * row_s)
        shard_s = max(min(SHARD_S, window_s / 2), _half_batch(worker) * row_s)
        rows = min(worker.free + (window_s - worker.queued_s) / row_s, budget_bytes / (4 * pool.mean_tokens))
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
    """`clamp(R/2, lo, hi)`."""
    high = HIGH_S if worker.reports >= FIRST_REPORTS else FIRST_HIGH_S
    low = min(high, max(_half_batch(worker) * row_s, LOW_S))
    return min(max(left_s / 2, low), high)
