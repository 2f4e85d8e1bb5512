"""kill -9 of the coordinator while workers are busy: the next one leaves them what they have."""

from __future__ import annotations

import time
from collections import defaultdict
from pathlib import Path

from tests.fault_yard import FaultYard
from tests.fleet_hosts import ENGINE
from tests.models import tiny_llama
from tests.runner import ROOT, wait_until

SEED, ROWS, CAP = 20261130, 160, 8


def begun(yard: FaultYard) -> dict[str, list[float]]:
    """When engines admitted each row, by key."""
    times: dict[str, list[float]] = defaultdict(list)
    for notes in yard.folder.glob("*.admitted"):
        for line in notes.read_text().splitlines():
            key, at = line.split()
            times[key].append(float(at))
    return times


def running(yard: FaultYard) -> dict[str, int]:
    """Rows in the batch of each worker, as its last beat told."""
    return {mac["name"]: mac["running"] for mac in yard.snapshot().get("macs", ())}


def test_no_row_that_had_begun_when_the_coordinator_was_killed_is_begun_again(tmp_path: Path) -> None:
    model = tiny_llama(tmp_path / "model")
    with FaultYard(tmp_path / "yard", FAKE_STEP_S="0.1", FLEET_TEST_ENGINE=ENGINE, PYTHONPATH=str(ROOT)) as yard:
        yard.up()
        for name in "ab":
            yard.join(name, FAKE_ADMITTED=str(yard.folder / f"{name}.admitted"))
        job = yard.order(model, ROWS, SEED)
        wait_until(lambda: running(yard) == {"a": CAP, "b": CAP}, story="full batches")
        assert yard.up_ is not None
        yard.up_.process.kill()
        killed = time.monotonic()
        yard.up_again()
        yard.await_over(job)
        computed = yard.check(job, "killed")
        times = begun(yard)
        before = {key: at for key, at in times.items() if at[0] < killed}
        again = {key: at for key, at in before.items() if len(at) > 1}
        assert len(before) >= 2 * CAP
        assert not again, f"{len(again)} of {len(before)} rows were begun again, killed at {killed}: {again}"
        assert max(computed.values()) <= 2, "only the last rows may be copied"
