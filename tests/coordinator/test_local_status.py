"""A run of this machine as a fleet of one."""

from dataclasses import replace
from pathlib import Path

import pytest

from coordinator.ledger.ledger import Ledger
from coordinator.screens.local_status import LocalStatus, job_line, mac_line, running_job
from coordinator.screens.snapshot import MacState
from fleet.config import StateDir
from fleet.errors import NoCoordinatorError
from fleet.job import JobState
from fleet.messages import Beat, Figures, Host, Ready, WorkerState
from tests import ledgers

BEAT = Beat(
    worker="local-1",
    nonce="n",
    epoch="e",
    state=WorkerState.PAUSED,
    shards=(),
    running=((1, 5), (2, 6)),
    waiting=3,
    engine=Ready(model_hash="ab", cap=8, kv_bytes=1, budget_bytes=1, context_tokens=1),
    figures=Figures(output_tokens=100, prompt_tokens=300, padding_tokens=100, decode_s=4.0, prefill_s=1.0),
    pace=0.5,
    host=Host(name="air", chip="Apple M2", memory_bytes=8 << 30),
    note="battery",
)


def test_a_macs_line_is_what_its_worker_says() -> None:
    mac = mac_line(BEAT, 20.0)
    assert (mac.name, mac.chip, mac.state, mac.note) == ("air", "Apple M2", MacState.PAUSED, "battery")
    assert (mac.cap, mac.running, mac.assigned) == (8, 2, 5)
    assert (mac.output_tps, mac.measured_tps) == (20.0, 40.0)


@pytest.mark.parametrize("state", WorkerState)
def test_every_state_of_a_worker_has_a_word(state: WorkerState) -> None:
    assert mac_line(replace(BEAT, state=state), 0.0).state in MacState


@pytest.fixture
def state(tmp_path: Path) -> StateDir:
    return StateDir(tmp_path / "state")


def test_only_a_job_that_is_worked_on_now_is_shown(state: StateDir) -> None:
    assert running_job(state) is None
    with Ledger.open(state) as ledger:
        assert running_job(state) is None
        job, _ = ledger.begin_job(ledgers.spec())
        ledger.add_requests(job.id, [ledgers.request("a", 1), ledgers.request("b", error="bad")])
        (line,) = LocalStatus(state)().jobs
        assert (line.id, line.state, line.requests, line.failed) == (job.id, "reading", 2, 1)
        ledger.end_job(job.id, JobState.FINISHED)
        assert running_job(state) is None
        ledger.begin_job(ledgers.spec())
    with pytest.raises(NoCoordinatorError, match="fleet jobs"):
        LocalStatus(state)()


def test_padding_is_a_share_of_all_prompt_positions_computed(state: StateDir) -> None:
    with Ledger.open(state) as ledger:
        job, _ = ledger.begin_job(ledgers.spec())
        line = job_line(ledger.job(job.id), [BEAT.figures], (mac_line(BEAT, 20.0),))
    assert (line.padding_share, line.output_tps, line.planned_tps) == (0.25, 20.0, 40.0)
