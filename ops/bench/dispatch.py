"""What the way to a worker and back costs: `python ops/bench/dispatch.py` sends rows through a real broker and worker
process to an engine without a model, and tells rows a second, our own CPU per 1,000 rows and Redis' memory."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from coordinator.broker.broker import Broker, connect
from coordinator.broker.dispatch import Dispatch
from coordinator.control.processes import Processes
from fleet import keys, leash
from fleet.config import StateDir
from fleet.job import Sampling
from fleet.messages import Finished, RowWork, Shard

ROOT = Path(__file__).parents[2]
WORKER = "bench"
#: Shards under way at once, as a window of the scheduler would be.
WINDOW = 8


def shard(number: int, rows: int, tokens: int) -> Shard:
    """`rows` new rows of `tokens` random-looking tokens."""
    first = number * rows
    return Shard(
        id=keys.shard(WORKER, number),
        job=1,
        model="m",
        model_hash="h",
        sampling=Sampling(),
        prefix=b"",
        rows=tuple(
            RowWork(id=i, key=i.to_bytes(16, "big"), tokens=os.urandom(2 * tokens) + bytes(2 * tokens), max_tokens=2)
            for i in range(first, first + rows)
        ),
    )


def start_worker(state: StateDir, url: str, cap: int) -> subprocess.Popen[bytes]:
    """A worker process with the engine of the tests."""
    engine = json.dumps([sys.executable, str(ROOT / "tests" / "fake_engine.py")])
    command = [sys.executable, "-m", "worker.supervisor", "--broker", url, "--worker-id", WORKER]
    command += ["--state", str(state.root), "--engine-command", engine, "--cap", str(cap)]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "FAKE_STEP_S": "0.001"}
    return leash.start(command, log=subprocess.DEVNULL, env=env)


def measure(state: StateDir, rows: int, per_shard: int, tokens: int) -> dict[str, float]:
    """Sends `rows` rows and takes their results."""
    broker = Broker(state, Processes(state))
    broker.start()
    dispatch = Dispatch(broker.url)
    worker = start_worker(state, broker.url, cap=64)
    shards = [shard(number, per_shard, tokens) for number in range(rows // per_shard)]
    sent = taken = 0
    memory_bytes = 0
    while dispatch.lease(WORKER) is None:
        time.sleep(0.05)
    began, cpu = time.perf_counter(), time.process_time()
    with connect(broker.url) as client:
        while taken < len(shards) * per_shard:
            while sent < len(shards) and sent * per_shard - taken < WINDOW * per_shard:
                dispatch.send(WORKER, shards[sent])
                sent += 1
            entries = dispatch.results(WORKER, 100)
            taken += sum(len(message.rows) for _, message in entries if isinstance(message, Finished))
            dispatch.delete(WORKER, [entry for entry, _ in entries])
            memory_bytes = max(memory_bytes, int(client.info("memory")["used_memory"]))
            if not entries:
                time.sleep(0.01)
    seconds, cpu_s = time.perf_counter() - began, time.process_time() - cpu
    worker.kill()
    worker.wait()
    dispatch.close()
    broker.stop()
    return {
        "rows_per_s": taken / seconds,
        "coordinator_cpu_s_per_1000_rows": cpu_s / taken * 1000,
        "redis_mb": memory_bytes / 1e6,
    }


def main() -> None:
    """Runs each shape three times and drops the first."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=4000)
    args = parser.parse_args()
    for per_shard, tokens in ((16, 500), (64, 500), (32, 2000)):
        figures = []
        for _ in range(3):
            with tempfile.TemporaryDirectory() as folder:
                figures.append(measure(StateDir(Path(folder)), args.rows, per_shard, tokens))
        for name in figures[0]:
            values = [figure[name] for figure in figures[1:]]
            print(f"{per_shard:>3} rows x {tokens} tokens a shard  {name:<34} " + "  ".join(f"{v:.3g}" for v in values))


if __name__ == "__main__":
    main()
