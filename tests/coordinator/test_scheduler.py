"""Windows follow speed, shards stay small, memory stays bounded."""

from dataclasses import replace

from coordinator.scheduling.fleet_view import FleetView, PoolView, WorkerView, seconds
from coordinator.scheduling.scheduler import SHARD_S, WINDOWS_BYTES, again, cuts, decide

SLOW = WorkerView(
    id="slow", cap=8, longest_tokens=2048, decode_tps=50.0, prefill_tps=500.0, reports=9, outstanding_s=0.0
)
FAST = replace(SLOW, id="fast", cap=32, decode_tps=500.0, prefill_tps=5000.0)
POOL = PoolView(rows=10_000, input_tokens=5_000_000, output_tokens=1_000_000.0)


def rows_for(made: list, worker: str) -> int:  # type: ignore[type-arg]
    return sum(cut.rows for cut in made if cut.worker == worker)


def test_an_empty_pool_sends_nothing() -> None:
    assert cuts([FAST], PoolView(rows=0, input_tokens=0, output_tokens=0.0)) == []


def test_a_ten_times_faster_worker_gets_about_ten_times_the_rows() -> None:
    made = cuts([SLOW, FAST], POOL)
    assert 8 <= rows_for(made, "fast") / rows_for(made, "slow") <= 12


def test_a_window_is_sent_as_shards_of_about_ten_seconds() -> None:
    made = [cut for cut in cuts([FAST], POOL) if cut.worker == "fast"]
    row_s = seconds(FAST, 500, 100)
    assert len(made) > 2
    assert all(cut.rows * row_s <= max(SHARD_S, FAST.cap / 2 * row_s) + row_s for cut in made)


def test_a_worker_with_enough_work_is_left_alone() -> None:
    assert cuts([replace(FAST, outstanding_s=119.0)], POOL) == []


def test_a_worker_that_has_not_told_its_speed_gets_a_short_window() -> None:
    unknown = replace(FAST, reports=0, cap=0, longest_tokens=0)
    assert rows_for(cuts([unknown], POOL), "fast") < rows_for(cuts([FAST], POOL), "fast") / 2


def test_the_longest_row_allowed_is_the_workers() -> None:
    assert {cut.longest for cut in cuts([FAST], POOL)} == {2048}
    assert {cut.longest for cut in cuts([replace(FAST, longest_tokens=0)], POOL)} == {None}


def test_windows_of_many_workers_stay_within_their_bytes() -> None:
    long_rows = PoolView(rows=100_000, input_tokens=100_000 * 30_000, output_tokens=1e6)
    fleet = [replace(FAST, id=str(n), prefill_tps=1e7, decode_tps=1e6) for n in range(50)]
    made = cuts(fleet, long_rows)
    assert sum(cut.rows for cut in made) * 4 * long_rows.mean_tokens <= WINDOWS_BYTES * 1.1


def test_rows_given_back_go_out_at_once_ahead_of_full_windows_and_by_speed() -> None:
    full = [replace(worker, outstanding_s=119.0) for worker in (SLOW, FAST)]
    view = FleetView(workers=full, pool=replace(POOL, back=20))
    made = decide(view)
    assert made == again(full, view.pool)
    assert {cut.ahead for cut in made} == {True}  # type: ignore[union-attr]
    assert (rows_for(made, "fast"), rows_for(made, "slow")) == (19, 1)
    assert max(cut.rows for cut in made) <= FAST.cap / 2  # type: ignore[union-attr]


def test_each_worker_gets_some_of_the_first_rows_given_back() -> None:
    fleet = [replace(FAST, id=name) for name in "abc"]
    made = again(fleet, replace(POOL, back=6 * FAST.cap))
    assert [cut.worker for cut in made[:6]] == ["a", "b", "c"] * 2
    assert sum(cut.rows for cut in made) == 6 * FAST.cap


def test_without_rows_given_back_nothing_goes_ahead() -> None:
    assert again([SLOW, FAST], POOL) == []


def test_rows_given_back_go_to_those_that_can_hold_them() -> None:
    pool = replace(POOL, back=4, shortest_tokens=4096)
    made = again([FAST, replace(SLOW, longest_tokens=8192)], pool)
    assert {cut.worker for cut in made} == {"slow"}
