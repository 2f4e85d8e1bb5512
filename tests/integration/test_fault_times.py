"""How soon the rows of a killed worker run elsewhere, and how soon one that joins works, over 20 of each.

All batches are full here: when a row runs elsewhere depends on the rows before it there, so that is told and not kept.
"""

from __future__ import annotations

import random
import statistics
import time
from pathlib import Path

import pytest
import redis

from fleet import codec, keys
from fleet.messages import Beat
from tests.fault_yard import FaultYard
from tests.fleet_hosts import ENGINE
from tests.models import tiny_llama
from tests.runner import ROOT, wait_until

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800)]
SEED, KILLS, JOINS = 20261130, 20, 20
#: After a kill, its rows are in the pool; after a model is loaded, its first rows run.
BACK_S, FIRST_S = 14.0, 3.0


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("model") / "tiny")


def beats(client: redis.Redis, wids: list[str]) -> dict[str, Beat]:
    """The last beat of each worker that has one."""
    found = {wid: client.get(keys.lease(wid)) for wid in wids}
    read = {wid: codec.decode(data) for wid, data in found.items() if data is not None}
    return {wid: beat for wid, beat in read.items() if isinstance(beat, Beat)}


def full(yard: FaultYard, client: redis.Redis, names: dict[str, str]) -> tuple[str, tuple[int, ...]]:
    """The first of these workers whose batch is full while two shards wait in its queue, and the rows in it.

    `names` are by id. One that vanished too often has its batch halved and is not waited for.
    """

    def look() -> tuple[str, tuple[int, ...]] | None:
        for wid, beat in beats(client, list(names)).items():
            if len(beat.running) == 8 and client.llen(f"rq:queue:{wid}") >= 2:
                return names[wid], tuple(row for row, _ in beat.running)
        time.sleep(0.1)
        return None

    found: tuple[str, tuple[int, ...]] = wait_until(
        look, within_s=90, story=f"a full batch and two shards: {yard.events()[-5:]}"
    )
    return found


def first_rows_s(client: redis.Redis, wid: str, notes: Path) -> float:
    """How long after its model was loaded a worker's engine admits a row; a beat tells of the model at once."""
    wait_until(lambda: (beat := beats(client, [wid]).get(wid)) and beat.engine, within_s=60)
    loaded = time.monotonic()
    wait_until(notes.exists, within_s=60)
    return max(0.0, float(notes.read_text().split()[1]) - loaded)


def still_open(yard: FaultYard, rows: set[int]) -> set[int]:
    with yard.ledger() as ledger:
        return {row.id for row in ledger.rows(sorted(rows))}


def told(name: str, times: list[float]) -> float:
    """Prints the times; the worst."""
    print(f"{name}: median {statistics.median(times):.1f} s, worst {max(times):.1f} s of {len(times)}")
    return max(times)


def test_rows_of_a_killed_worker_are_back_in_the_pool_within_14_s(tmp_path: Path, model: Path) -> None:
    rng = random.Random(SEED)
    back, elsewhere = [], []
    with FaultYard(tmp_path / "yard", FAKE_STEP_S="0.1") as yard:
        yard.begin("abcd")
        ids = {name: yard.worker_id(name) for name in "abcd"}
        job = yard.order(model, 700 * KILLS, SEED)
        with yard.broker() as client:
            for _ in range(KILLS):
                shuffled = rng.sample("abcd", 4)
                name, batch = full(yard, client, {ids[name]: name for name in shuffled})
                rows = set(batch)
                yard.workers[name].process.kill()
                killed, at = time.monotonic(), time.time()
                others = [wid for other, wid in ids.items() if other != name]
                unseen = still_open(yard, rows)
                while unseen and time.monotonic() - killed < 60:
                    running = {row for beat in beats(client, others).values() for row, _ in beat.running}
                    unseen -= running
                    if time.monotonic() - killed > BACK_S - 2:
                        unseen = still_open(yard, unseen)
                    time.sleep(0.1)
                elsewhere.append(time.monotonic() - killed)
                back.append(yard.await_event(f"{name} is lost") - at)
                print(f"{name}: {back[-1]:.1f} s, {elsewhere[-1]:.1f} s", flush=True)
                yard.workers[name].end()
                yard.rejoin(name)
        yard.fleet.run("cancel", str(job)).expect(0)
        with yard.ledger() as ledger:
            ledger.validate()
    told("the last row of the batch runs elsewhere, all batches full", elsewhere)
    assert told("rows back in the pool", back) <= BACK_S


def test_a_worker_that_joins_has_a_shard_within_3_s_of_its_model(tmp_path: Path, model: Path) -> None:
    first = []
    with FaultYard(tmp_path / "yard", FAKE_STEP_S="0.1") as yard:
        yard.begin("a")
        yard.order(model, 200 * JOINS, SEED)
        for number in range(JOINS):
            name = f"n{number}"
            notes = yard.folder / f"{name}.admitted"
            engine = {"FLEET_TEST_ENGINE": ENGINE, "PYTHONPATH": str(ROOT)}
            yard.join(name, FAKE_LOAD_S="0.5", FAKE_ADMITTED=str(notes), **engine)
            yard.await_event(f"{name} has joined", within_s=60)
            with yard.broker() as client:
                first.append(first_rows_s(client, yard.worker_id(name), notes))
            yard.workers[name].end()
    assert told("from the model to the first rows", first) <= FIRST_S
