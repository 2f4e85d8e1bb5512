"""A coordinator and real worker processes whose engines keep the pace of simulated machines, and what they are
calibrated by beforehand."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Self

import numpy as np

from coordinator.broker.broker import Broker
from coordinator.broker.dispatch import Dispatch
from coordinator.control.controller import Controller
from coordinator.control.job_run import JobRun
from coordinator.control.member import Member
from coordinator.control.processes import Processes
from coordinator.control.turn import IDLE_S, Turn
from coordinator.control.watch import Watch
from coordinator.intake.feed import Feed
from coordinator.ledger.ledger import Ledger
from coordinator.records import NewRequest, NewRow, Source
from fleet import keys, leash
from fleet.config import StateDir
from fleet.job import Sampling
from fleet.messages import Admitted, Finished, Ready, RowWork, Shard
from ops.bench.simulation import workload as workloads
from ops.bench.simulation.profiles import Profile
from ops.bench.simulation.workload import Workload
from tests.ledgers import spec
from tests.runner import ROOT
from worker.engine_process import Ended, Launch
from worker.held import ModelRef

ENGINE = (sys.executable, str(ROOT / "tests" / "paced_engine.py"))
GREEDY = Sampling()
#: A calibration decodes for so long, and computes prompts for so long, seconds.
CALIBRATED_S = 5.0
#: Shards whose way to the engine is timed.
TRIPS = 20
PROMPT_TOKENS = 2000


def faster(profile: Profile, times: float) -> Profile:
    """The same machine, so many times as fast."""
    row_tps = tuple(rate * times for rate in profile.row_tps)
    return replace(profile, row_tps=row_tps, prefill_tps=profile.prefill_tps * times)


def paced(profile: Profile, workload: Path, notes: Path) -> dict[str, str]:
    """The environment that makes an engine this machine."""
    told = {"PACED_PROFILE": json.dumps(asdict(profile)), "PACED_WORKLOAD": str(workload), "PACED_NOTES": str(notes)}
    return {**os.environ, "PYTHONPATH": str(ROOT), **told}


def noted(notes: Path) -> dict[str, float]:
    """What an engine noted: `ready`, and each shard's id, and when."""
    lines = notes.read_text().splitlines() if notes.exists() else []
    return {line.split()[-2]: float(line.split()[-1]) for line in lines}


class PacedFleet:
    """A context that ends all of it."""

    def __init__(self, folder: Path, profiles: Sequence[Profile], workload: Workload) -> None:
        self._folder = folder
        self._backlog = folder / "backlog.jsonl"
        folder.mkdir()
        workloads.write(workload, self._backlog)
        self._workload = workload
        state = StateDir(folder / "state")
        state.make()
        self.broker = Broker(state, Processes(state))
        self.broker.start()
        self.ledger = Ledger.open(state)
        self.told: list[str] = []
        self.dispatch = NotingDispatch(self.broker.url)
        self.controller = Controller(ledger=self.ledger, dispatch=self.dispatch, tell=self.told.append)
        self._turn = Turn(self.controller, Watch(self.controller, self.broker))
        #: so far
        self.turns = 0
        self._processes = [self._start(profile) for profile in profiles]

    def _start(self, profile: Profile) -> subprocess.Popen[bytes]:
        state = StateDir(self._folder / profile.name)
        state.make()
        self.broker.expect(profile.name)
        self.controller.add_member(Member(id=profile.name))
        command = [sys.executable, "-m", "worker.supervisor", "--broker", self.broker.url]
        command += ["--worker-id", profile.name, "--state", str(state.root), "--engine-command", json.dumps(ENGINE)]
        with (state.logs / "out.log").open("ab") as out:
            return leash.start(command, log=out, env=paced(profile, self._backlog, self.notes(profile.name)))

    def notes(self, worker: str) -> Path:
        """Its engine's."""
        return self._folder / worker / "notes"

    def work(self, *, until: Callable[[], object], within_s: float) -> None:
        """Turns until something is so."""
        deadline = time.monotonic() + within_s
        while not until():
            assert time.monotonic() < deadline, "\n".join(self.told)
            self.turns += 1
            if not self._turn.once():
                time.sleep(IDLE_S)

    def gather(self) -> None:
        """Waits until all workers are there."""
        self.work(until=lambda: all(member.beat for member in self.controller.members.values()), within_s=60)

    def run(self, within_s: float) -> float:
        """Runs the backlog; seconds from the moment that all its rows are in the pool."""
        self.gather()
        job = JobRun(
            self.ledger.begin_job(spec())[0],
            self.ledger,
            lambda *_, **__: (),
            feed=Feed(iter([list(requests(self._workload))])),
            signature="s",
        )
        while not job.read:
            job.take_in()
        self.controller.add_job(job)
        self.turns = 0
        began_s = time.monotonic()
        self.work(until=job.done, within_s=within_s)
        took_s = time.monotonic() - began_s
        self.ledger.validate()
        return took_s

    def busy_s(self, worker: str) -> float:
        """That its engine worked, as of its last beat."""
        figures = self.controller.members[worker].throughput.total
        return figures.decode_s + figures.prefill_s

    def load_s(self, worker: str) -> float:
        """From the first shard for a worker to its engine's word that it is loaded."""
        sent = [at for id, at in self.dispatch.sent.items() if id.rpartition("-")[0] == worker]
        return noted(self.notes(worker))["ready"] - min(sent)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.kill()
            process.wait()
            if process.stdin is not None:
                process.stdin.close()
        self.dispatch.close()
        self.ledger.close()
        self.broker.stop()


class NotingDispatch(Dispatch):
    """Notes when each shard is sent, by the system's monotonic clock."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.sent: dict[str, float] = {}

    def send(self, worker: str, shard: Shard, *, ahead: bool = False) -> None:
        self.sent[shard.id] = time.monotonic()
        super().send(worker, shard, ahead=ahead)


def requests(workload: Workload) -> list[NewRequest]:
    """The backlog as intake makes it; a prompt begins with its row's number, so that none is another's beginning."""
    made = []
    for number, length in enumerate(workload.prompts.tolist()):
        row = NewRow(
            key=number.to_bytes(16, "big"),
            tokens=prompt(number, length),
            max_tokens=workload.max_tokens,
            sampling=GREEDY,
        )
        made.append(NewRequest(custom_id=f"r{number}", source=Source(file="in", line=number + 1), rows=(row,)))
    return made


def prompt(number: int, length: int) -> bytes:
    """So many tokens, uint32 little endian."""
    return number.to_bytes(4, "little") + bytes(4 * (length - 1))


# -- calibration -----------------------------------------------------------------------------------


def trip_s(folder: Path, profile: Profile) -> float:
    """From a decision to the shard in an engine that is loaded and idle: the median of a few."""
    workload = Workload(seed=0, prompts=np.ones(TRIPS + 1, int), answers=np.ones(TRIPS + 1, int))
    with PacedFleet(folder, [profile], workload) as fleet:
        fleet.gather()
        took = []
        for number in range(TRIPS + 1):
            shard = _shard(profile.name, number, [(number, 1)])
            fleet.dispatch.send(profile.name, shard)
            while shard.id not in (found := noted(fleet.notes(profile.name))):
                time.sleep(0.01)
            took.append(found[shard.id] - fleet.dispatch.sent[shard.id])
        return statistics.median(took[1:])


def calibrated(folder: Path, profiles: Sequence[Profile]) -> list[Profile]:
    """The machines with their speeds as measured with the engines alone, all at once."""
    folder.mkdir()
    found: dict[str, Profile] = {}
    threads = [
        threading.Thread(target=lambda p: found.update({p.name: _calibrate(folder / p.name, p)}), args=(profile,))
        for profile in profiles
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [found[profile.name] for profile in profiles]


def _calibrate(folder: Path, profile: Profile) -> Profile:
    """A full batch of equal answers, then prompts with an answer of one token each, timed by the wall clock."""
    answer = round(CALIBRATED_S * profile.row_tps[profile.cap])
    prompts = max(round(CALIBRATED_S * profile.prefill_tps / PROMPT_TOKENS), 1)
    folder.mkdir()
    workloads.write(
        Workload(
            seed=0,
            prompts=np.array([1] * profile.cap + [PROMPT_TOKENS] * prompts),
            answers=np.array([answer] * profile.cap + [1] * prompts),
        ),
        folder / "backlog.jsonl",
    )
    launch = Launch(
        command=ENGINE,
        log=folder / "log",
        key_log=folder / "keys",
        hash_cache=folder / "hashes",
        environment=lambda _: paced(profile, folder / "backlog.jsonl", folder / "notes"),
    )
    engine = launch(ModelRef(model="m", model_hash="h"), 0)
    try:
        while not isinstance(message := engine.receive(30.0), Ready):
            assert not isinstance(message, Ended | None), message
        decode_s = _timed(engine, _shard(profile.name, 1, [(row, 1) for row in range(profile.cap)]))
        rows = [(profile.cap + row, PROMPT_TOKENS) for row in range(prompts)]
        prefill_s = _timed(engine, _shard(profile.name, 2, rows))
    finally:
        engine.close()
    stretch = decode_s * profile.row_tps[profile.cap] / answer
    return replace(
        profile,
        row_tps=tuple(rate / stretch for rate in profile.row_tps),
        prefill_tps=prompts * PROMPT_TOKENS / prefill_s,
    )


def _timed(engine: object, shard: Shard) -> float:
    """Seconds from the first row's place in the batch to the last row's end."""
    left = {row.id for row in shard.rows}
    began_s = 0.0
    engine.send(shard)
    while left:
        message = engine.receive(60.0)
        if isinstance(message, Admitted):
            began_s = began_s or time.monotonic()
        elif isinstance(message, Finished):
            left -= {row.id for row in message.rows}
        else:
            assert not isinstance(message, Ended | None), message
    return time.monotonic() - began_s


def _shard(worker: str, number: int, rows: Sequence[tuple[int, int]]) -> Shard:
    work = tuple(
        RowWork(id=n + 1, key=n.to_bytes(16, "big"), tokens=prompt(n, length), max_tokens=1) for n, length in rows
    )
    return Shard(
        id=keys.shard(worker, number), job=1, model="m", model_hash="h", sampling=GREEDY, prefix=b"", rows=work
    )
