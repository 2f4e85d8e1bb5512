"""Waiting for a job of the fleet: how far it is, time and again, and how it ended."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from coordinator.client.fleet_client import FleetClient
from coordinator.control.jobs_seen import OVER
from coordinator.control.run_view import RunView
from coordinator.records import Counts
from coordinator.screens.snapshot import MacState
from coordinator.screens.wording import job_failed
from fleet.errors import Exit, FleetError, InterruptedRunError, NoCoordinatorError

#: How often the coordinator is asked, seconds.
ASK_S = 1.0
#: A coordinator that is started again takes its jobs up; one that is away for longer is given up, seconds.
PATIENCE_S = 600.0
AWAY = "waiting for the coordinator"
#: Macs in these states take no work until somebody does something.
_ABSENT = frozenset({MacState.PRESENT, MacState.LOST, MacState.KICKED})


class Following:
    """Asks for one job until it is over."""

    def __init__(
        self,
        client: FleetClient,
        job: int,
        *,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._job = job
        self._sleep = sleep
        self._clock = clock

    def __call__(self, show: Callable[[Mapping[str, Any]], None]) -> Mapping[str, Any]:
        """Shows the job at each look; the last look. NoCoordinatorError when nobody answers for PATIENCE_S."""
        last: Mapping[str, Any] = {}
        heard_s = self._clock()
        while True:
            try:
                last = self._client.get(f"/fleet/jobs/{self._job}")
                heard_s = self._clock()
                show(last)
            except NoCoordinatorError:
                if self._clock() - heard_s > PATIENCE_S:
                    raise
                if last:
                    show({**last, "state": AWAY})
            if last and last["state"] in OVER:
                return last
            self._sleep(ASK_S)


def nobody_works(client: FleetClient) -> str:
    """What to do when no Mac is there that could work; empty when one is."""
    states = {MacState(mac["state"]) for mac in client.get("/fleet/status")["macs"]}
    if states - _ABSENT:
        return ""
    return "no Mac works for this fleet now: `fleet join` on any, or `fleet up --work` on the coordinator's, begins it"


def view(job: Mapping[str, Any]) -> RunView:
    """A job as the progress bar shows it."""
    eta = job["eta_s"]
    return RunView(
        counts=Counts(
            requests=job["requests"],
            done=job["done"],
            error=job["failed"],
            input_tokens=job["input_tokens"],
            output_tokens=job["output_tokens"],
        ),
        intake_ended=job["intake_complete"],
        output_tps=job["output_tps"],
        prompt_tps=0.0,
        computed=0,
        left_s=sum(eta) / 2 if eta else 0.0,
        state=job["state"],
    )


def outcome(job: Mapping[str, Any]) -> Exit:
    """The exit code of a job that is over, as `fleet run` has it; raises what it failed with."""
    if job["state"] == "failed":
        raise FleetError(job_failed(job["id"], job["error"]))
    if job["state"] == "cancelled":
        raise InterruptedRunError(
            f"job {job['id']} was cancelled with {job['open']:,} requests open; "
            f"`fleet results {job['id']}` writes what it has"
        )
    return Exit.FAILED_REQUESTS if job["failed"] else Exit.OK
