"""`fleet run` of this machine as a fleet of one: its job from the ledger, its worker from the lease. Only reads."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from coordinator.broker.broker_socket import find_broker
from coordinator.broker.dispatch import Dispatch, Lease
from coordinator.ledger.ledger import Ledger
from coordinator.ledger.lock import StateLock
from coordinator.planning.machine import memory_bytes
from coordinator.records import JobStatus
from coordinator.scheduling.throughput import Throughput
from coordinator.screens.snapshot import FleetSnapshot, JobLine, MacLine, MacState
from fleet import __version__
from fleet.config import BEAT_S, LEASE_TTL_S, StateDir
from fleet.errors import BrokerError, DecodeError, NoCoordinatorError
from fleet.job import JobState
from fleet.messages import Beat, Figures, WorkerState

#: Worker states in the words for Macs.
_STATES = {
    WorkerState.IDLE: MacState.IDLE,
    WorkerState.LOADING: MacState.LOADING,
    WorkerState.WORKING: MacState.WORKING,
    WorkerState.MEASURING: MacState.MEASURING,
    WorkerState.THROTTLED: MacState.THROTTLED,
    WorkerState.PAUSED: MacState.PAUSED,
    WorkerState.STOPPING: MacState.STOPPING,
}


@dataclass(slots=True)
class LocalStatus:
    """Snapshots of the run that works on a state folder."""

    state: StateDir
    clock: Callable[[], float] = time.time
    #: of each worker seen, for rates over time
    _speeds: dict[str, Throughput] = field(default_factory=dict)
    #: when each last told something, by `clock`
    _told: dict[str, float] = field(default_factory=dict)

    def __call__(self) -> FleetSnapshot:
        """The run now; NoCoordinatorError when there is none."""
        job = running_job(self.state)
        if job is None:
            raise NoCoordinatorError(f"no `fleet run` works on {self.state.root} (any more): `fleet jobs` lists jobs")
        now = self.clock()
        leases = self._leases()
        macs = tuple(self._mac(lease, now) for lease in leases)
        return FleetSnapshot(
            version=__version__,
            coordinator=f"{platform.node()}, a `fleet run` of this machine alone",
            now=now,
            jobs=(job_line(job, [lease.beat.figures for lease in leases], macs),),
            macs=macs,
        )

    def _leases(self) -> list[Lease]:
        """Of all workers; none while the broker does not answer."""
        url = find_broker(self.state)
        if url is None:
            return []
        dispatch = Dispatch(url)
        try:
            return dispatch.leases()
        except (BrokerError, DecodeError):
            return []
        finally:
            dispatch.close()

    def _mac(self, lease: Lease, now: float) -> MacLine:
        beat = lease.beat
        told = now - (LEASE_TTL_S - lease.ttl_ms / 1000)  # when it was, by how long it still lives
        speed = self._speeds.setdefault(beat.nonce, Throughput())
        if told > self._told.get(beat.nonce, 0.0) + BEAT_S / 2:
            self._told[beat.nonce] = told
            speed.report(beat.figures, told)
        return mac_line(beat, speed.told_tps or _mean_tps(beat.figures))


def running_job(state: StateDir) -> JobStatus | None:
    """The job that a process works on in this folder, None when none does."""
    holder = StateLock.holder(state)
    if holder is None or holder.job is None or not state.has_ledger():
        return None
    with Ledger.read(state) as ledger:
        job = ledger.job(holder.job)
    return job if job.record.state is JobState.RUNNING else None


def job_line(job: JobStatus, figures: list[Figures], macs: tuple[MacLine, ...]) -> JobLine:
    """The job's line; when it ends is told by the run itself."""
    record, counts = job.record, job.counts
    computed = sum(figure.prompt_tokens for figure in figures)
    padding = sum(figure.padding_tokens for figure in figures)
    return JobLine(
        id=record.id,
        task=record.spec.task.value,
        model=record.spec.model,
        state="running" if record.intake_complete else "reading",
        requests=counts.requests,
        intake_complete=record.intake_complete,
        done=counts.done,
        failed=counts.failed,
        input_tokens=counts.input_tokens,
        output_tokens=counts.output_tokens,
        output_tps=sum(mac.output_tps for mac in macs),
        planned_tps=sum(mac.measured_tps for mac in macs),
        padding_share=padding / max(computed + padding, 1),
        created=record.created,
    )


def mac_line(beat: Beat, output_tps: float) -> MacLine:
    """A worker's line by what it says itself."""
    return MacLine(
        id=beat.worker,
        name=beat.host.name or platform.node(),
        state=_STATES[beat.state],
        note=beat.note,
        chip=beat.host.chip,
        memory_bytes=beat.host.memory_bytes or memory_bytes(),
        used_bytes=beat.figures.peak_bytes,
        cap=beat.engine.cap if beat.engine else 0,
        running=len(beat.running),
        assigned=len(beat.running) + beat.waiting,
        output_tps=output_tps,
        measured_tps=output_tps / beat.pace if beat.pace else 0.0,
        share=1.0,
    )


def _mean_tps(figures: Figures) -> float:
    """Before two beats were seen: tokens over the seconds that the engine has computed."""
    busy_s = figures.decode_s + figures.prefill_s
    tokens = figures.output_tokens if figures.steps else figures.prompt_tokens
    return tokens / busy_s if busy_s else 0.0
