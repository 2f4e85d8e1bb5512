"""The policy's view is what the coordinator knows, in the policy's terms."""

from __future__ import annotations

import pytest

from coordinator.records import OpenRow
from coordinator.scheduling.assignments import Assignments, Flight
from coordinator.scheduling.backlog import Backlog
from coordinator.scheduling.lengths import Lengths
from coordinator.scheduling.picture import Seen, pool_view, row_views, shard_views, weigh, worker_view
from coordinator.scheduling.speeds import Speed


def row(id: int, length: int = 100) -> OpenRow:
    return OpenRow(id=id, length=length, max_tokens=400, sampling=1)


def learnt() -> Lengths:
    lengths = Lengths()
    for answer in [50, 150] * 50:
        lengths.ended(100, answer)
    return lengths


def flights(*shards: Flight) -> Assignments:
    assignments = Assignments()
    for shard in shards:
        weigh(shard, learnt(), computed_share=0.5)
        assignments.send(shard)
    return assignments


def shard(id: str, *rows: int, **more: bool) -> Flight:
    return Flight(id=id, worker=id[0], rows={n: row(n) for n in rows}, **more)


def test_a_worker_has_the_seconds_of_its_rows_at_its_speed() -> None:
    assignments = flights(shard("a-1", 1, 2, 3, 4), shard("a-2", 5, 6))
    view = worker_view("a", Seen(cap=2), Speed(50.0, 500.0), assignments.burden("a"))
    assert view.rows == 6
    assert view.outstanding_s == pytest.approx(6 * (100 / 50 + 0.5 * 100 / 500))
    assert view.queued_s == pytest.approx(view.outstanding_s * 4 / 6)
    assignments.recorded(1)
    assert worker_view("a", Seen(cap=2), Speed(50.0, 500.0), assignments.burden("a")).rows == 5


def test_the_pool_expects_what_ended_rows_tell() -> None:
    backlog = Backlog()
    backlog.add([row(n) for n in range(10)])
    assert pool_view(backlog, Lengths()).output_tokens == 4000
    pool = pool_view(backlog, learnt())
    assert (pool.rows, pool.output_tokens) == (10, 1000)
    assert pool.shortest_tokens <= 500


def test_only_shards_that_no_agent_has_can_be_taken_whole() -> None:
    all_of_a = flights(shard("a-1", 1), shard("a-2", 2), shard("a-3", 3, exclusive=True), shard("a-4", 4)).of("a")
    all_of_a[3].taken = True
    assert [view.id for view in shard_views(all_of_a, Seen(shards=frozenset({"a-1"})))] == ["a-2"]


def test_rows_of_an_agent_are_running_or_wait_and_what_ran_is_taken_off() -> None:
    assignments = flights(shard("a-1", 1, 2), shard("a-2", 3))
    seen = Seen(shards=frozenset({"a-1"}), running={1: 30})
    views = {view.id: view for view in row_views(assignments.of("a"), seen, assignments, learnt())}
    assert views.keys() == {1, 2}
    assert (views[1].running, views[2].running) == (True, False)
    assert views[1].left_tokens == pytest.approx(views[1].output_tokens - 30)
    assert views[2].output_tokens == pytest.approx(100, rel=0.05)


def test_a_copy_is_known_before_its_worker_has_told_of_it() -> None:
    assignments = flights(shard("a-1", 1), shard("b-1", 1, copy=True))
    (view,) = row_views(assignments.of("b"), Seen(), assignments, learnt())
    assert view.copied
    assert shard_views(assignments.of("b"), Seen()) == []
