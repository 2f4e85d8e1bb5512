"""A worker process with the fake engine, and as much of a coordinator as its tests need."""

import os
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from coordinator.broker.broker import Broker
from coordinator.broker.dispatch import Dispatch
from coordinator.control.processes import start_time
from fleet import keys, leash
from fleet.job import Sampling
from fleet.messages import Crashed, Finished, Returned, RowWork, Shard

FAKE_ENGINE = Path(__file__).parent / "fake_engine.py"
WORKER = "mac"


def key_of(row_id):
    return row_id.to_bytes(16, "big")


def shard(number, ids, *, tokens=4, model="m", **more):
    rows = tuple(RowWork(id=i, key=key_of(i), tokens=b"\1\0\0\0", max_tokens=tokens) for i in ids)
    return Shard(
        id=keys.shard(WORKER, number),
        job=1,
        model=model,
        model_hash=f"hash of {model}",
        sampling=Sampling(),
        prefix=b"",
        rows=rows,
        **more,
    )


def until(what, within_s=60.0):
    """Waits until `what()` is true; its value."""
    deadline = time.monotonic() + within_s
    while not (value := what()):
        assert time.monotonic() < deadline, "nothing came in time"
        time.sleep(0.02)
    return value


def gone(pid):
    return start_time(pid) is None


@dataclass
class Coordinator:
    """As much of a coordinator as these tests need: takes results in, keeps the last lease."""

    broker: Broker
    dispatch: Dispatch
    texts: dict = field(default_factory=dict)
    crashes: list = field(default_factory=list)
    returned: list = field(default_factory=list)

    def take(self):
        entries = self.dispatch.results(WORKER, 1000)
        for _, message in entries:
            if isinstance(message, Finished):
                self.texts.update((row.id, row.text) for row in message.rows)
            elif isinstance(message, Crashed):
                self.crashes.append(message)
            elif isinstance(message, Returned):
                self.returned.append(message)
        self.dispatch.delete(WORKER, [entry for entry, _ in entries])
        return self

    def has(self, ids):
        self.take()
        return self.texts.keys() >= set(ids)

    def beat(self):
        lease = self.dispatch.lease(WORKER)
        return lease.beat if lease else None


class Worker:
    def __init__(self, state, url, **environment):
        self.state = state
        command = [
            *(sys.executable, "-m", "worker.supervisor", "--broker", url, "--worker-id", WORKER),
            *("--state", str(state.root), "--engine-command", f'["{sys.executable}", "{FAKE_ENGINE}"]'),
        ]
        # The engine is a script in tests/: it finds our packages by the folder we run in.
        env = {**os.environ, "PYTHONPATH": str(FAKE_ENGINE.parents[1]), **environment}
        with (state.logs / "out.log").open("ab") as out:
            self.process = leash.start(command, log=out, env=env)

    def engine_pids(self):
        # -ww: ps cuts each line at the width of a terminal, which an environment may state.
        command = ["ps", "-ww", "-A", "-o", "pid=,ppid=,args="]
        listing = subprocess.run(command, capture_output=True, text=True, check=True)
        rows = [line.split(None, 2) for line in listing.stdout.splitlines()]
        ours = [row for row in rows if len(row) == 3 and str(FAKE_ENGINE) in row[2] and "--fd" in row[2]]
        return [int(pid) for pid, parent, _ in ours if int(parent) == self.process.pid]

    def engine(self):
        return until(self.engine_pids)[0]

    def end(self):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()

    def log(self):
        return (self.state.logs / "worker.log").read_text()
