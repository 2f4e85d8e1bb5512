"""Who takes what from whom once the pool is empty."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from coordinator.scheduling.fleet_view import Copy, FleetView, PoolView, Recall, RowView, ShardView, Steal, WorkerView
from coordinator.scheduling.scheduler import decide

EMPTY = PoolView(rows=0, input_tokens=0, output_tokens=0.0)
SLOW = WorkerView(
    id="slow", cap=4, longest_tokens=0, decode_tps=20.0, prefill_tps=200.0, reports=9, outstanding_s=0.0, solo_tps=10.0
)
FAST = replace(SLOW, id="fast", decode_tps=200.0, prefill_tps=2000.0, solo_tps=100.0)
#: 100 prompt tokens and 100 new ones a row: 5.5 s on the slow worker in a full batch, 0.55 s on the fast one.
ROW_S = 5.5


def busy(worker: WorkerView, rows: int) -> WorkerView:
    return replace(worker, rows=rows, outstanding_s=rows * ROW_S * 20 / worker.decode_tps)


def shard(number: int, worker: str = "slow", rows: int = 2, **more: int) -> ShardView:
    return ShardView(
        id=f"{worker}-{number}", worker=worker, rows=rows, input_tokens=100.0 * rows, output_tokens=100.0 * rows, **more
    )


def row(id: int, worker: str = "slow", *, done: int = 0, running: bool = True, **more: int) -> RowView:
    return RowView(
        id=id,
        worker=worker,
        input_tokens=100.0,
        output_tokens=100.0,
        left_tokens=100.0 - done,
        running=running,
        **more,  # type: ignore[arg-type]
    )


def decided(
    *workers: WorkerView, shards: Sequence[ShardView] = (), rows: Sequence[RowView] = (), copies: int = 99
) -> list[Steal | Recall | Copy]:
    return decide(FleetView(workers=workers, pool=EMPTY, shards=shards, rows=rows, copies_left=copies))  # type: ignore[return-value]


def test_the_last_shards_of_the_slow_queue_move_until_both_would_end_at_once() -> None:
    made = decided(busy(SLOW, 24), FAST, shards=[shard(number) for number in range(10)])
    assert [steal.shard for steal in made if isinstance(steal, Steal)] == [f"slow-{n}" for n in range(9, 0, -1)]
    assert {(steal.source, steal.target) for steal in made} == {("slow", "fast")}


def test_nothing_moves_while_everybody_has_work() -> None:
    assert decided(busy(SLOW, 24), busy(FAST, 200), shards=[shard(1)]) == []


def test_the_slow_worker_takes_nothing_that_would_end_later_with_it() -> None:
    assert decided(SLOW, busy(FAST, 8), shards=[shard(1, "fast", rows=4)]) == []


def test_two_hungry_workers_do_not_take_the_same_shard() -> None:
    made = decided(busy(SLOW, 24), FAST, replace(FAST, id="other"), shards=[shard(number) for number in range(10)])
    taken = [steal.shard for steal in made if isinstance(steal, Steal)]
    assert len(taken) == len(set(taken))


def test_rows_that_wait_with_the_agent_are_called_off_after_the_queue() -> None:
    waiting = [row(number, running=False) for number in range(8)]
    made = decided(busy(SLOW, 14), FAST, shards=[shard(1)], rows=[*waiting, *(row(n) for n in range(100, 104))])
    assert made[0] == Steal(shard="slow-1", source="slow", target="fast")
    assert isinstance(made[1], Recall)
    assert set(made[1].rows) < set(range(8))
    assert 7 in made[1].rows


def test_a_worker_without_the_model_takes_only_what_is_worth_loading_it() -> None:
    bare = replace(FAST, cap=0)
    assert decided(busy(SLOW, 7), bare, shards=[shard(1)]) == []
    assert decided(busy(SLOW, 24), bare, shards=[shard(n) for n in range(10)]) != []


def test_a_shard_too_long_for_the_thief_stays() -> None:
    small = replace(FAST, longest_tokens=500)
    assert decided(busy(SLOW, 24), small, shards=[shard(n, longest_tokens=600) for n in range(10)]) == []


def test_the_row_with_most_to_come_is_copied_first() -> None:
    rows = [row(1, done=90), row(2, done=10), row(3, done=50)]
    made = decided(busy(SLOW, 3), replace(FAST, cap=1), rows=rows)
    assert made == [Copy(row=2, source="slow", target="fast")]


def test_a_row_that_is_nearly_done_is_not_copied() -> None:
    assert decided(busy(SLOW, 1), FAST, rows=[row(1, done=90)]) == []


def test_a_row_is_never_copied_to_a_worker_that_has_it() -> None:
    rows = [row(1), row(1, "fast", copied=True), replace(row(1), copied=True)]
    assert decided(busy(SLOW, 1), busy(FAST, 1), rows=rows) == []


def test_a_copy_counts_by_the_worker_that_ends_first() -> None:
    """Where a copy runs on the fast worker the row is as good as done: a third has nothing to win."""
    third = replace(FAST, id="third")
    rows = [replace(row(1), copied=True), row(1, "fast", done=90, copied=True)]
    assert decided(busy(SLOW, 1), busy(FAST, 1), third, rows=rows) == []


def test_copies_are_bounded() -> None:
    rows = [row(number) for number in range(4)]
    assert len(decided(busy(SLOW, 4), FAST, rows=rows, copies=2)) == 2


def test_a_worker_that_may_not_take_rows_of_the_job_takes_none() -> None:
    away = replace(FAST, may_take=False)
    assert decided(busy(SLOW, 24), away, shards=[shard(n) for n in range(10)], rows=[row(99)]) == []
