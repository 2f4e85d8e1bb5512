"""Waiting for a job over the absence of its coordinator."""

from __future__ import annotations

from typing import Any, cast

import pytest

from coordinator.client.fleet_client import FleetClient
from coordinator.client.following import AWAY, PATIENCE_S, Following, outcome, view
from fleet.errors import Exit, FleetError, InterruptedRunError, NoCoordinatorError

JOB: dict[str, Any] = {
    "id": 3,
    "state": "running",
    "error": "",
    "requests": 9,
    "done": 4,
    "failed": 1,
    "open": 4,
    "intake_complete": True,
    "input_tokens": 5,
    "output_tokens": 6,
    "output_tps": 7.5,
    "eta_s": [10, 20],
}
GONE = NoCoordinatorError("away")


class Told:
    """A client that answers from a list; its last answer again and again. Time passes while one sleeps."""

    def __init__(self, *answers: dict[str, Any] | Exception) -> None:
        self.answers = list(answers)
        self.now_s = 0.0
        self.shown: list[str] = []

    def get(self, path: str) -> dict[str, Any]:
        assert path == "/fleet/jobs/3"
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds

    def follow(self) -> Any:
        following = Following(cast(FleetClient, self), 3, sleep=self.sleep, clock=lambda: self.now_s)
        return following(lambda job: self.shown.append(job["state"]))


def test_a_job_is_followed_to_its_end() -> None:
    told = Told(JOB, {**JOB, "state": "writing"}, {**JOB, "state": "finished"})
    assert told.follow()["state"] == "finished"
    assert told.shown == ["running", "writing", "finished"]


def test_a_coordinator_that_comes_back_is_waited_for() -> None:
    told = Told(JOB, GONE, GONE, {**JOB, "state": "finished"})
    assert told.follow()["state"] == "finished"
    assert told.shown == ["running", AWAY, AWAY, "finished"]


def test_one_that_stays_away_is_given_up() -> None:
    told = Told(JOB, GONE)
    with pytest.raises(NoCoordinatorError):
        told.follow()
    assert PATIENCE_S < told.now_s < PATIENCE_S + 10


def test_a_job_looks_like_a_run() -> None:
    seen = view(JOB)
    assert (seen.counts.done, seen.counts.failed, seen.counts.open) == (4, 1, 4)
    assert (seen.output_tps, seen.left_s, seen.state) == (7.5, 15, "running")
    assert view({**JOB, "eta_s": None}).left_s == 0


def test_a_job_ends_with_the_exit_code_of_a_run() -> None:
    assert outcome({**JOB, "state": "finished"}) is Exit.FAILED_REQUESTS
    assert outcome({**JOB, "state": "finished", "failed": 0}) is Exit.OK
    with pytest.raises(InterruptedRunError, match="cancelled with 4 requests open"):
        outcome({**JOB, "state": "cancelled"})
    with pytest.raises(FleetError, match="job 3 failed: no worker"):
        outcome({**JOB, "state": "failed", "error": "no worker"})
