"""Every class of fault against a fleet of real processes; after each the ledger is whole and the output undisturbed."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.fault_yard import FaultYard, away
from tests.models import tiny_llama
from tests.relay import Relay
from tests.runner import wait_until

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]
SEED = 20261130
#: Points on a row's way through a worker, with the passes before it is killed there.
WORKER = {
    "before the taking": 2,
    "inside the taking": 2,
    "after the taking": 2,
    "before the report": 2,
    "after the report": 2,
    "before the shard's end": 2,
    "after the shard's end": 2,
    "after the beat": 4,
}
#: Points at the end of a job.
END = ("before the output", "after the output", "before the job's end", "after the job's end")
#: Points where a coordinator gives up a worker that is gone.
LOSS = ("before the purge", "after the purge")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture
def yard(tmp_path: Path) -> Iterator[FaultYard]:
    with FaultYard(tmp_path / "yard", FAKE_STEP_S="0.05") as yard:
        yield yard


def test_a_broker_wiped_again_and_again_loses_nothing(yard: FaultYard, model: Path) -> None:
    yard.begin("ab")
    job = yard.order(model, 400, SEED)
    for _ in range(3):
        yard.grows(job)
        with yard.broker() as client:
            client.flushall()
        began = time.monotonic()
        yard.grows(job, 24)
        print(f"24 rows more {time.monotonic() - began:.1f} s after the wipe")
    yard.await_over(job)
    yard.check(job, "wiped")


def test_a_worker_killed_at_each_point_of_a_rows_way_loses_and_doubles_nothing(yard: FaultYard, model: Path) -> None:
    yard.begin("a")
    job = yard.order(model, 900, SEED)
    yard.join("b", FAULT_KILL="before the report:1")
    for label, count in WORKER.items():
        away(yard.workers["b"], story=f"the end before {label}")
        yard.rejoin("b", FAULT_KILL=f"{label}:{count}")
    away(yard.workers["b"], story="the last end")
    yard.await_over(job)
    yard.check(job, str(WORKER))


def test_a_coordinator_killed_at_the_end_of_a_job_ends_it_once(yard: FaultYard, model: Path) -> None:
    yard.begin("a", FAULT_KILL=f"{END[0]}:1")
    job = yard.order(model, 40, SEED)
    for label in END[1:]:
        assert yard.up_ is not None
        away(yard.up_, story=f"the end before {label}")
        yard.up_again(FAULT_KILL=f"{label}:1")
    away(yard.up_, story="the last end")
    yard.up_again()
    wait_until(lambda: yard.record(job).state == "finished", within_s=60)
    yard.check(job, "the end of a job")


def test_a_coordinator_killed_while_it_gives_up_a_worker_loses_nothing(yard: FaultYard, model: Path) -> None:
    yard.begin("abc", FAULT_KILL=f"{LOSS[0]}:1")
    job = yard.order(model, 900, SEED)
    yard.grows(job)
    yard.workers["a"].process.kill()
    assert yard.up_ is not None
    away(yard.up_)
    yard.up_again(FAULT_KILL=f"{LOSS[1]}:1")
    yard.grows(job)
    yard.workers["b"].process.kill()
    away(yard.up_)
    yard.up_again()
    yard.await_over(job, within_s=300)  # c does it alone, which took 75 to 85 s beside other work
    yard.check(job, str(LOSS))


def test_everything_delivered_twice_is_recorded_once(yard: FaultYard, model: Path) -> None:
    yard.begin("", FAULT_TWICE="1")
    for name in "ab":
        yard.join(name, FAULT_TWICE="1")
    for name in "ab":
        yard.await_event(f"{name} is here", within_s=60)
    job = yard.order(model, 300, SEED)
    yard.await_over(job)
    computed = yard.check(job, "twice")
    assert max(computed.values()) <= 2, "a shard that comes again after its end is computed again, and no more"


def test_links_that_are_slow_cut_and_half_open_lose_nothing(yard: FaultYard, model: Path) -> None:
    yard.begin("a")
    with Relay(("127.0.0.1", yard.port)) as relay:
        yard.join_at("b", relay.port)
        yard.await_event("b is here", within_s=60)
        job = yard.order(model, 900, SEED)
        wait_until(lambda: yard.mac("b").get("running"), story="b works")
        relay.delay_s = 0.3
        yard.grows(job)
        for _ in range(5):
            relay.cut()
            time.sleep(1)
        relay.delay_s = 0.0
        yard.grows(job)
        relay.silence()
        yard.await_event("b is lost", within_s=20)
        yard.grows(job)
        relay.speak()
        yard.await_event("b is back", within_s=40)
        yard.grows(job)
        yard.await_over(job, within_s=180)
        yard.check(job, "links")


@pytest.mark.parametrize("off_s", [600, -600])
def test_a_worker_whose_clock_is_ten_minutes_off_works_as_any(yard: FaultYard, model: Path, off_s: int) -> None:
    yard.begin("a")
    yard.join("b", FAULT_CLOCK_S=str(off_s))
    yard.await_event("b is here", within_s=60)
    job = yard.order(model, 300, SEED)
    wait_until(lambda: yard.mac("b").get("rows_done", 0) > 50, story="b works")
    yard.await_over(job)
    assert not any("lost" in event for event in yard.events())
    computed = yard.check(job, f"clock {off_s} s off")
    assert sum(computed.values()) <= 300 + 20, "rows are hardly computed twice"


def test_a_full_broker_stops_the_fleet_only_while_it_is_full(yard: FaultYard, model: Path) -> None:
    yard.begin("ab", FAULT_MAXMEMORY="16mb")
    job = yard.order(model, 600, SEED)
    for full_s in (3.0, 16.0):
        yard.grows(job)
        yard.fill_broker()
        time.sleep(full_s)
        yard.empty_broker()
        yard.grows(job)
    yard.await_over(job)
    yard.check(job, "maxmemory")


@pytest.mark.parametrize("asleep_s", [5.0, 20.0])
@pytest.mark.parametrize("who", ["coordinator", "broker"])
def test_a_coordinator_or_broker_that_sleeps_costs_nobody_his_place(
    yard: FaultYard, model: Path, who: str, asleep_s: float
) -> None:
    yard.begin("ab")
    job = yard.order(model, 400, SEED)
    yard.grows(job)
    assert yard.up_ is not None
    pid = yard.up_.process.pid if who == "coordinator" else yard.child("valkey-server")
    with yard.asleep(pid):
        time.sleep(asleep_s)
    yard.await_over(job)
    yard.check(job, f"{who} asleep for {asleep_s} s")
    assert not any("lost" in event for event in yard.events()), yard.events()


def test_a_poison_row_is_found_out_and_one_that_kills_large_batches_of_one_mac_is_none(
    yard: FaultYard, model: Path
) -> None:
    yard.begin("")
    job = yard.order(model, 400, SEED)
    keys = wait_until(lambda: yard.keys_of(job))
    yard.join("a", FAKE_CRASH_KEYS=keys["r77"])
    yard.join("b", FAKE_CRASH_KEYS=",".join(keys.values()), FAKE_CRASH_ABOVE="4")
    yard.await_over(job, within_s=240)
    story = f"poison: {yard.events()}"
    with yard.ledger() as ledger:
        bad = [str(answer.error) for answer in ledger.answers(job) if answer.error]
    # b computes r77 where it comes to it alone
    assert all("crashed the engine alone 2 times" in error for error in bad), story
    yard.check(job, story, lost=["r77"][: len(bad)])


def test_a_poison_row_costs_no_other(yard: FaultYard, model: Path) -> None:
    yard.begin("")
    job = yard.order(model, 400, SEED)
    keys = wait_until(lambda: yard.keys_of(job))
    for name in "abc":
        yard.join(name, FAKE_CRASH_KEYS=",".join([keys["r77"], keys["r300"]]))
    yard.await_over(job, within_s=240)
    yard.check(job, "poison", lost=["r77", "r300"])
    with yard.ledger() as ledger:
        bad = [str(answer.error) for answer in ledger.answers(job) if answer.error]
    assert all("crashed the engine alone 2 times" in error for error in bad), bad


def test_a_worker_that_crashes_on_everything_does_not_take_the_job_along(yard: FaultYard, model: Path) -> None:
    yard.begin("ab")
    job = yard.order(model, 600, SEED)
    keys = wait_until(lambda: yard.keys_of(job))
    yard.grows(job)
    yard.join("c", FAKE_CRASH_KEYS=",".join(keys.values()))
    yard.await_over(job, within_s=240)
    print(yard.events())
    yard.check(job, "a broken worker")


Fault = Callable[[FaultYard, str, random.Random], object]


def wipe(yard: FaultYard, _name: str, _rng: random.Random) -> None:
    with yard.broker() as client:
        client.flushall()


def restart(yard: FaultYard, _name: str, rng: random.Random) -> None:
    """The coordinator is killed, with its broker or a moment after it."""
    assert yard.up_ is not None
    if rng.random() < 0.5:
        yard.kill("valkey")
        time.sleep(rng.random())
    yard.up_.process.kill()
    yard.up_again()


def replace(yard: FaultYard, name: str, rng: random.Random) -> None:
    """A worker is killed and started again, before or after it is missed."""
    yard.workers[name].end()
    time.sleep(rng.choice([0.0, 2.0, 14.0]))
    yard.rejoin(name)


def sleep(yard: FaultYard, name: str, rng: random.Random) -> None:
    with yard.asleep(yard.workers[name].process.pid):
        time.sleep(rng.choice([1.0, 5.0, 14.0]))


FAULTS: list[Fault] = [
    wipe,
    restart,
    replace,
    sleep,
    lambda yard, _name, _rng: yard.kill("valkey"),
    lambda yard, _name, _rng: yard.kill("gatehouse"),
    lambda yard, name, _rng: yard.kill_engine(name),
    lambda yard, name, _rng: yard.workers[name].process.send_signal(signal.SIGTERM),
]


@pytest.mark.parametrize("seed", range(SEED, SEED + 4))
def test_a_schedule_that_a_seed_decides_loses_and_doubles_nothing(yard: FaultYard, model: Path, seed: int) -> None:
    rng = random.Random(seed)
    yard.begin("abc")
    job = yard.order(model, 2000, seed)
    done: list[str] = []
    while yard.fleet.counts(job).open > 300 or not done:
        yard.grows(job, rng.choice([8, 40, 80]), within_s=90)
        for name, worker in yard.workers.items():
            if worker.process.poll() is not None:
                yard.rejoin(name)
        fault, name = rng.choice(FAULTS), rng.choice("abc")
        done.append(f"{getattr(fault, '__name__', '')} {name}")
        fault(yard, name, rng)
    yard.await_over(job, within_s=240)
    print(f"seed {seed}: {done}")
    yard.check(job, f"seed {seed}: {done}")
