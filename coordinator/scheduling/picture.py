"""Makes the policy's view from what the coordinator keeps: shards in flight, speeds, lengths. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from coordinator.scheduling.assignments import Assignments, Burden, Flight
from coordinator.scheduling.backlog import Backlog
from coordinator.scheduling.fleet_view import PoolView, RowView, ShardView, WorkerView
from coordinator.scheduling.lengths import Lengths, octave
from coordinator.scheduling.speeds import Speed


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What a worker's last beat said."""

    #: rows that decode together at most; 0 until its engine is loaded
    cap: int = 0
    #: prompt + new tokens of the longest row it can run; 0 until its engine is loaded
    longest_tokens: int = 0
    #: shards its agent has
    shards: frozenset[str] = frozenset()
    #: row in the batch -> new tokens so far
    running: Mapping[int, int] = field(default_factory=dict)


def weigh(flight: Flight, lengths: Lengths, computed_share: float = 1.0) -> None:
    """Notes what a shard's rows are worth, before it is sent."""
    rows = flight.rows.values()
    flight.row_input_tokens = sum(row.length for row in rows) * computed_share / len(rows)
    flight.row_output_tokens = sum(lengths.mean(octave(row.length), row.max_tokens) for row in rows) / len(rows)


def worker_view(id: str, seen: Seen, speed: Speed, burden: Burden, *, may_take: bool = True) -> WorkerView:
    """One worker with what it has; `may_take`: it may get rows of the job in question."""
    decode_tps, prefill_tps = speed.decode_tps, speed.prefill_tps
    return WorkerView(
        id=id,
        cap=seen.cap,
        longest_tokens=seen.longest_tokens,
        decode_tps=decode_tps,
        prefill_tps=prefill_tps,
        solo_tps=speed.solo_tps,
        reports=speed.reports,
        outstanding_s=burden.output_tokens / decode_tps + burden.input_tokens / prefill_tps,
        rows=burden.rows,
        may_take=may_take,
    )


def pool_view(backlog: Backlog, lengths: Lengths, computed_share: float = 1.0) -> PoolView:
    """What waits, with the answers that may be expected of it."""
    output = sum(rows * lengths.mean(bucket, most / rows) for bucket, (rows, most) in backlog.octaves.items())
    return PoolView(
        rows=len(backlog),
        input_tokens=backlog.input_tokens,
        output_tokens=output,
        computed_share=computed_share,
        shortest_tokens=backlog.shortest,
        back=backlog.back,
    )


def shard_views(flights: Iterable[Flight], seen: Seen) -> list[ShardView]:
    """The shards of a worker that its agent has not taken."""
    return [
        ShardView(
            id=flight.id,
            worker=flight.worker,
            rows=len(flight.rows),
            input_tokens=flight.input_tokens,
            output_tokens=flight.output_tokens,
            longest_tokens=max(row.length + row.max_tokens for row in flight.rows.values()),
        )
        for flight in flights
        if flight.id not in seen.shards and not (flight.exclusive or flight.copy or flight.taken)
    ]


def row_views(flights: Iterable[Flight], seen: Seen, assignments: Assignments, lengths: Lengths) -> list[RowView]:
    """The rows that a worker's agent has."""
    views = []
    for flight in flights:
        if flight.exclusive or not (flight.copy or flight.taken or flight.id in seen.shards):
            continue
        for row in flight.rows.values():
            done = seen.running.get(row.id, 0)
            total = lengths.total(octave(row.length), row.max_tokens, done)
            views.append(
                RowView(
                    id=row.id,
                    worker=flight.worker,
                    input_tokens=row.length,
                    output_tokens=total,
                    left_tokens=total - done,
                    longest_tokens=row.length + row.max_tokens,
                    running=row.id in seen.running,
                    copied=assignments.is_copied(row.id),
                )
            )
    return views
