"""What a worker holds, event by event; no process, no Redis."""

import random
from dataclasses import replace

import pytest

from fleet.job import Finish, Sampling
from fleet.messages import (
    Admitted,
    Cancel,
    Crashed,
    Figures,
    Finished,
    Pulse,
    Ready,
    Refused,
    Returned,
    RowResult,
    RowWork,
    SetCap,
    Shard,
    WorkerState,
)
from worker.held import ModelRef
from worker.holding import MAX_FAILURES, PROVISIONAL_CAP, Holding

READY = Ready(model_hash="h", cap=4, kv_bytes=1, budget_bytes=1, context_tokens=1)


def shard(number, ids, *, model="m", **more):
    rows = tuple(RowWork(id=i, key=bytes(16), tokens=b"\1\0\0\0", max_tokens=1) for i in ids)
    return Shard(
        id=f"w-{number}", job=1, model=model, model_hash="h", sampling=Sampling(), prefix=b"", rows=rows, **more
    )


def result(row):
    return RowResult(id=row, text="t", finish=Finish.STOP, input_tokens=1, output_tokens=1)


def finished(*rows):
    return Finished(rows=tuple(result(row) for row in rows))


def loaded(holding, model="m"):
    holding.engine_started(ModelRef(model=model, model_hash="h"))
    return holding.heard(READY)


@pytest.fixture
def holding():
    holding = Holding()
    yield holding
    holding.validate()


def test_a_shard_waits_for_the_engine_and_goes_to_it_once_loaded(holding):
    assert holding.take(shard(1, [1, 2])).to_engine == ()
    assert holding.wanted() == ModelRef(model="m", model_hash="h")
    assert holding.state() is WorkerState.LOADING
    assert loaded(holding).to_engine == (shard(1, [1, 2]),)
    assert holding.take(shard(2, [3])).to_engine == (shard(2, [3]),)
    assert holding.state() is WorkerState.WORKING


def test_results_of_owed_rows_are_told_and_others_are_not(holding):
    holding.take(shard(1, [1, 2]))
    loaded(holding)
    holding.heard(Admitted(rows=(1, 2)))
    assert holding.heard(finished(1, 99)).to_coordinator == (result(1),)
    assert holding.done() == []
    assert holding.heard(finished(1)).to_coordinator == (), "told once"
    holding.heard(finished(2))
    assert holding.done() == ["w-1"]
    holding.forget("w-1")
    assert holding.state() is WorkerState.IDLE


def test_a_pulse_updates_progress_and_figures(holding):
    holding.take(shard(1, [1, 2]))
    loaded(holding)
    holding.heard(Admitted(rows=(1,)))
    holding.heard(Pulse(running=((1, 7), (55, 3)), waiting=1, figures=Figures(steps=7)))
    beat = holding.beat(worker="w", nonce="n", epoch="e")
    assert beat.running == ((1, 7),)
    assert beat.waiting == 1
    assert beat.figures.steps == 7
    assert beat.shards == ("w-1",)
    assert beat.engine == READY


def test_more_is_wanted_until_a_whole_batch_waits(holding):
    holding.take(shard(1, range(PROVISIONAL_CAP - 1)))
    assert holding.wants_more()
    holding.take(shard(2, [100]))
    assert not holding.wants_more()
    loaded(holding)
    holding.heard(Admitted(rows=(0, 1, 2, 3)))
    assert not holding.wants_more()
    holding.heard(finished(*range(4, PROVISIONAL_CAP - 1)))
    assert holding.waiting == 1
    assert holding.wants_more()


def test_a_crash_gives_back_the_batch_and_keeps_what_waits(holding):
    holding.take(shard(1, [1, 2, 3, 4, 5]))
    loaded(holding)
    holding.heard(Admitted(rows=(1, 2)))
    holding.heard(Admitted(rows=(3,)))
    holding.heard(finished(1))
    decision = holding.engine_gone("signal 6 (aborted)")
    assert decision.to_coordinator == (Crashed(rows=(2, 3), latest=(3,), reason="signal 6 (aborted)", cap=4),)
    assert holding.wanted() == ModelRef(model="m", model_hash="h")
    (given,) = loaded(holding).to_engine
    assert [row.id for row in given.rows] == [4, 5]
    holding.heard(finished(4, 5))
    assert holding.done() == ["w-1"]


def test_a_crash_tells_the_cap_in_force(holding):
    holding.set_cap(3)
    holding.take(shard(1, [1], exclusive=True, cap=2))
    loaded(holding)
    holding.heard(Admitted(rows=(1,)))
    (crash,) = holding.engine_gone("x").to_coordinator
    assert crash.cap == 2


def test_an_idle_engine_that_dies_is_a_crash_without_suspects(holding):
    holding.take(shard(1, [1]))
    loaded(holding)
    holding.heard(finished(1))
    assert holding.engine_gone("signal 9 (killed)").to_coordinator == (
        Crashed(rows=(), latest=(), reason="signal 9 (killed)", cap=4),
    )
    assert holding.wanted() is None, "no row needs an engine"


def test_engines_that_fail_to_load_give_everything_back_in_the_end(holding):
    holding.take(shard(1, [1, 2]))
    for _ in range(MAX_FAILURES - 1):
        holding.engine_started(ModelRef(model="m", model_hash="h"))
        assert holding.engine_gone("exit status 3").to_coordinator == ()
    holding.engine_started(ModelRef(model="m", model_hash="h"))
    (returned,) = holding.engine_gone("exit status 3").to_coordinator
    assert returned.rows == (1, 2)
    assert "exit status 3" in returned.reason
    assert holding.done() == ["w-1"]


def test_a_row_begun_in_between_resets_the_count(holding):
    holding.take(shard(1, [1, 2, 3, 4]))
    for row in (1, 2, 3):
        loaded(holding)
        holding.heard(Admitted(rows=(row,)))
        (crash,) = holding.engine_gone("x").to_coordinator
        assert crash.rows == (row,)
    assert holding.failures == 0
    assert holding.shard_of == {4: "w-1"}


def test_a_refusal_returns_the_rows_of_that_model_only(holding):
    holding.take(shard(1, [1, 2]))
    holding.take(shard(2, [3], model="other"))
    holding.engine_started(ModelRef(model="m", model_hash="h"))
    decision = holding.heard(Refused(reason="another hash"))
    assert decision.to_coordinator == (Returned(rows=(1, 2), reason="another hash"),)
    holding.engine_gone("exit status 1")
    assert holding.wanted() == ModelRef(model="other", model_hash="h")


def test_another_model_waits_and_later_shards_of_the_first_wait_behind_it(holding):
    holding.take(shard(1, [1]))
    loaded(holding)
    assert holding.take(shard(2, [2], model="other")).to_engine == ()
    assert holding.take(shard(3, [3])).to_engine == ()
    assert holding.wanted() == ModelRef(model="m", model_hash="h")
    holding.heard(finished(1))
    assert holding.wanted() == ModelRef(model="other", model_hash="h")
    assert holding.engine_gone("let go", expected=True).to_coordinator == ()
    assert [given.id for given in loaded(holding, "other").to_engine] == ["w-2"]


def test_cancelled_rows_are_owed_no_more_and_the_engine_hears_of_those_it_has(holding):
    holding.take(shard(1, [1, 2]))
    assert holding.cancel((1,)).to_engine == (), "no engine has it"
    loaded(holding)
    holding.take(shard(2, [3]))
    assert holding.cancel((2, 3, 99)).to_engine == (Cancel(rows=(2, 3)),)
    assert holding.done() == ["w-1", "w-2"]
    holding.heard(Admitted(rows=(2,)))
    assert holding.inside == {}, "an admission that crossed the cancel"


def test_a_shard_taken_away_is_dropped(holding):
    holding.take(shard(1, [1, 2]))
    loaded(holding)
    assert holding.drop("w-1").to_engine == (Cancel(rows=(1, 2)),)
    assert holding.drop("w-77").to_engine == ()
    assert holding.done() == ["w-1"]


def test_a_row_that_comes_in_a_newer_shard_is_owed_by_that_one(holding):
    holding.take(shard(1, [1, 2]))
    loaded(holding)
    holding.heard(Admitted(rows=(1, 2)))
    decision = holding.take(shard(2, [2]))
    assert decision.to_engine == (Cancel(rows=(2,)), shard(2, [2]))
    holding.drop("w-1")
    assert holding.shard_of == {2: "w-2"}


def test_a_cap_goes_to_this_engine_and_the_next(holding):
    assert holding.set_cap(2).to_engine == ()
    assert loaded(holding).to_engine == (SetCap(rows=2),)
    assert holding.set_cap(1).to_engine == (SetCap(rows=1),)
    holding.engine_gone("x")
    assert loaded(holding).to_engine == (SetCap(rows=1),)


def test_a_stop_lets_the_batch_finish_and_returns_the_rest(holding):
    holding.take(shard(1, [1, 2, 3]))
    loaded(holding)
    holding.heard(Admitted(rows=(1,)))
    decision = holding.stop()
    assert decision.to_engine == (Cancel(rows=(2, 3)),)
    assert decision.to_coordinator == (Returned(rows=(2, 3)),)
    assert holding.state() is WorkerState.STOPPING
    assert not holding.wants_more()
    assert holding.take(shard(2, [9])).to_coordinator == (Returned(rows=(9,)),)
    holding.heard(finished(1))
    assert sorted(holding.done()) == ["w-1", "w-2"]


@pytest.mark.parametrize("seed", range(20))
def test_any_order_of_events_keeps_the_books_and_each_row_has_one_outcome(seed):
    rng = random.Random(seed)
    print("seed", seed)
    holding = Holding()
    outcomes: dict[int, int] = {}
    given: set[int] = set()
    next_row, number = 0, 0

    def follow(decision):
        for report in decision.to_coordinator:
            rows = [report.id] if isinstance(report, RowResult) else report.rows
            for row in rows:
                outcomes[row] = outcomes.get(row, 0) + 1
        for message in decision.to_engine:
            if isinstance(message, Shard):
                given.update(row.id for row in message.rows)
            elif isinstance(message, Cancel):
                given.difference_update(message.rows)

    for _ in range(300):
        event = rng.choice(["take", "load", "admit", "admit", "finish", "finish", "crash", "cap"])
        if event == "take":
            count = rng.randint(1, 5)
            follow(holding.take(shard(number, range(next_row, next_row + count), model=rng.choice(["m", "m", "o"]))))
            number, next_row = number + 1, next_row + count
        elif event == "load" and holding.ready is None and (wanted := holding.wanted()):
            holding.engine_started(wanted)
            if rng.random() < 0.8:
                follow(holding.heard(replace(READY, cap=rng.randint(1, 8))))
        elif event == "admit" and given:
            follow(holding.heard(Admitted(rows=tuple(rng.sample(sorted(given), 1)))))
        elif event == "finish" and given:
            row = rng.choice(sorted(given))
            given.discard(row)
            follow(holding.heard(finished(row)))
        elif event == "crash" and holding.model is not None:
            given.clear()
            follow(holding.engine_gone("x"))
        elif event == "cap":
            follow(holding.set_cap(rng.randint(0, 8)))
        if holding.model is not None and holding.wanted() != holding.model:
            given.clear()
            follow(holding.engine_gone("let go", expected=True))
        holding.validate()
    follow(holding.stop())
    follow(holding.heard(finished(*holding.inside)))
    holding.validate()
    assert holding.shard_of == {}
    assert outcomes == dict.fromkeys(range(next_row), 1)


def pulse(**told):
    return Pulse(running=(), waiting=0, figures=Figures(), **told)


def test_measuring_and_throttling_show_in_the_state_and_the_pace_in_the_beat(holding):
    holding.take(shard(1, [1, 2]))
    loaded(holding)
    holding.heard(pulse(measuring=True, throttled=True))
    assert holding.state() is WorkerState.MEASURING
    holding.heard(pulse(throttled=True, pace=0.5))
    assert holding.state() is WorkerState.THROTTLED
    assert holding.beat(worker="w", nonce="n", epoch="e").pace == 0.5
    holding.heard(pulse(pace=1.1))
    assert holding.state() is WorkerState.WORKING
    holding.heard(pulse(throttled=True))
    holding.heard(finished(1, 2))
    assert holding.state() is WorkerState.IDLE, "without work nobody is slow"


def test_another_engine_does_not_inherit_the_pace_of_the_last(holding):
    holding.take(shard(1, [1]))
    loaded(holding)
    holding.heard(pulse(measuring=True, pace=0.5))
    holding.engine_gone("signal 9")
    assert holding.state() is WorkerState.LOADING
    assert holding.beat(worker="w", nonce="n", epoch="e").pace == 0


def test_a_cap_that_the_engine_changes_is_the_one_reckoned_with(holding):
    holding.take(shard(1, range(6)))
    loaded(holding)
    assert not holding.wants_more()
    assert holding.heard(replace(READY, cap=9)).to_engine == ()
    assert holding.wants_more()
    assert holding.beat(worker="w", nonce="n", epoch="e").engine.cap == 9


def test_a_pause_lets_the_batch_finish_returns_the_rest_and_lets_the_engine_go(holding):
    holding.take(shard(1, [1, 2, 3]))
    loaded(holding)
    holding.heard(Admitted(rows=(1,)))
    decision = holding.pause("battery")
    assert decision.to_engine == (Cancel(rows=(2, 3)),)
    assert decision.to_coordinator == (Returned(rows=(2, 3)),)
    assert not holding.wants_more()
    assert holding.take(shard(2, [9])).to_coordinator == (Returned(rows=(9,)),)
    beat = holding.beat(worker="w", nonce="n", epoch="e")
    assert (beat.state, beat.note, beat.running) == (WorkerState.PAUSED, "battery", ((1, 0),))
    assert holding.wanted() == ModelRef(model="m", model_hash="h"), "one row is in the batch"
    holding.heard(finished(1))
    assert holding.wanted() is None
    assert sorted(holding.done()) == ["w-1", "w-2"]


def test_after_a_pause_work_goes_on(holding):
    holding.pause("heat")
    assert holding.pause("").to_coordinator == ()
    assert holding.state() is WorkerState.IDLE
    assert holding.wants_more()
    holding.take(shard(1, [1]))
    assert [given.id for given in loaded(holding).to_engine] == ["w-1"]
