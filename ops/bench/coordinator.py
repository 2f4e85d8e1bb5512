"""What a fleet costs its coordinator: `python -m ops.bench.coordinator` takes rows in, sends them to made-up workers,
records their answers, and tells its own CPU per 1,000 rows and Redis' memory. Tokenising and the API are left out.

The workers are one process beside it that takes shards off the queues, beats, and answers so many rows a second.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import redis
from rq.job import Job

from coordinator.broker.broker import Broker, connect
from coordinator.broker.dispatch import Dispatch
from coordinator.control.controller import Controller
from coordinator.control.job_run import JobRun
from coordinator.control.member import Member
from coordinator.control.processes import Processes
from coordinator.control.turn import IDLE_S, Turn
from coordinator.control.watch import Watch
from coordinator.intake.feed import Feed
from coordinator.ledger.ledger import Ledger
from coordinator.records import JobSpec, NewRequest, NewRow, Source
from fleet import codec, keys
from fleet.config import BEAT_S, FLUSH_S, LEASE_TTL_S, StateDir
from fleet.job import Finish, KeyHeader, KeyMaker, Sampling, Task
from fleet.messages import Beat, Figures, Finished, Ready, RowResult, RowWork, Shard, WorkerState

ROOT = Path(__file__).resolve().parents[2]
GREEDY = Sampling()
CAP = 32
OUTPUT_TOKENS = 100
CHUNK = 1_000


class MadeUp:
    """One worker without an engine."""

    def __init__(self, client: redis.Redis, name: str, rows_s: float) -> None:
        self.client, self.name, self.rows_s = client, name, rows_s
        self.rows: deque[tuple[str, RowWork]] = deque()
        self.figures = Figures()
        #: rows taken at most
        self.held = max(2 * CAP, round(3 * FLUSH_S * rows_s))
        self.done_s = self.beat_s = time.monotonic()

    def turn(self) -> None:
        """Takes what it wants, answers what is due, beats."""
        while len(self.rows) < self.held and (id := self.client.lpop(f"rq:queue:{self.name}")):
            job = Job.fetch(id.decode(), connection=self.client, serializer=codec.RqSerializer)
            shard = codec.decode(job.args[0])
            assert isinstance(shard, Shard)
            self.rows.extend((shard.id, row) for row in shard.rows)
            self.client.delete(job.key)
        now = time.monotonic()
        if now - self.done_s >= FLUSH_S:
            self.answer(min(round((now - self.done_s) * self.rows_s), len(self.rows)))
            self.done_s = now
        if now >= self.beat_s:
            self.beat_s = now + BEAT_S
            self.beat()

    def answer(self, count: int) -> None:
        """Writes so many results."""
        rows = [self.rows.popleft()[1] for _ in range(count)]
        told = tuple(
            RowResult(
                id=row.id,
                text="an answer of some length " * 16,
                finish=Finish.STOP,
                input_tokens=len(row.tokens) // 4,
                output_tokens=OUTPUT_TOKENS,
            )
            for row in rows
        )
        self.figures = Figures(
            output_tokens=self.figures.output_tokens + OUTPUT_TOKENS * count,
            steps=self.figures.steps + count,
            decode_s=self.figures.decode_s + count / self.rows_s,
        )
        for start in range(0, count, 256):
            self.client.xadd(
                keys.results(self.name), {keys.FIELD: codec.encode(Finished(rows=told[start : start + 256]))}
            )

    def beat(self) -> None:
        """Renews the lease."""
        running = tuple((row.id, 1) for _, row in list(self.rows)[:CAP])
        ready = Ready(model_hash="h", cap=CAP, kv_bytes=1, budget_bytes=1 << 30, context_tokens=1 << 20)
        said = Beat(
            worker=self.name,
            nonce="n",
            epoch=(self.client.get(keys.EPOCH) or b"").decode(),
            state=WorkerState.WORKING,
            shards=tuple({shard for shard, _ in self.rows}),
            running=running,
            waiting=max(len(self.rows) - CAP, 0),
            engine=ready,
            figures=self.figures,
        )
        self.client.set(keys.lease(self.name), codec.encode(said), px=int(LEASE_TTL_S * 1000))


def work(url: str, names: list[str], rows_s: float) -> None:
    """The process of all made-up workers; until it is ended."""
    client = connect(url)
    workers = [MadeUp(client, name, rows_s / len(names)) for name in names]
    while True:
        for worker in workers:
            worker.turn()
        time.sleep(0.05)


def chunks(rows: int, tokens: int) -> Iterator[list[NewRequest]]:
    """Requests of one row each, of `tokens` random tokens."""
    rng = np.random.default_rng(1)
    maker = KeyMaker(KeyHeader(model_hash="h", tokenizer_hash="t", sampling=GREEDY, max_tokens=2 * OUTPUT_TOKENS))
    for first in range(0, rows, CHUNK):
        data = rng.integers(0, 50_000, (min(CHUNK, rows - first), tokens), dtype=np.uint32)
        prompts = [line.tobytes() for line in data]
        made = [NewRow(key=maker.key(p), tokens=p, max_tokens=2 * OUTPUT_TOKENS, sampling=GREEDY) for p in prompts]
        yield [
            NewRequest(custom_id=f"r{first + n}", source=Source(file="in", line=first + n), rows=(row,))
            for n, row in enumerate(made)
        ]


def measure(folder: Path, rows: int, tokens: int, workers: int, rows_s: float) -> dict[str, float]:
    """Works the rows off."""
    state = StateDir(folder)
    names = [f"w{n}" for n in range(workers)]
    with Ledger.open(state) as ledger:
        broker = Broker(state, Processes(state))
        broker.start()
        command = [sys.executable, "-m", "ops.bench.coordinator", "--work", broker.url, *names, "--rate", str(rows_s)]
        others = subprocess.Popen(command, cwd=ROOT)
        try:
            controller = Controller(ledger=ledger, dispatch=Dispatch(broker.url))
            for name in names:
                controller.add_member(Member(id=name))
            spec = JobSpec(task=Task.GENERATE, model="m", model_hash="h", inputs=("in",), output="out", options="{}")
            made = list(chunks(rows, tokens))
            run = JobRun(ledger.begin_job(spec)[0], ledger, lambda *_, **__: (), feed=Feed(iter(made)))
            controller.add_job(run)
            turn = Turn(controller, Watch(controller, broker))
            began, cpu = time.monotonic(), cpu_s()
            while not run.done():
                busy = run.take_in()
                if not (turn.once() or busy):
                    time.sleep(IDLE_S)
            cpu, took = cpu_s() - cpu, time.monotonic() - began
            ledger.validate()
            with connect(broker.url) as client:
                peak = client.info("memory")["used_memory_peak"]
        finally:
            others.kill()
            others.wait()
            broker.stop()
    return {"rows_s": rows / took, "cpu_s_per_1000": 1000 * cpu / rows, "redis_peak_mb": peak / 1e6, "seconds": took}


def cpu_s() -> float:
    """CPU of this process so far, all threads."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def main() -> int:
    """Prints the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--tokens", type=int, default=500)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--rate", type=float, default=1000.0, help="rows a second of all workers together")
    parser.add_argument("--work", nargs="+", metavar=("URL", "NAME"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.work:
        work(args.work[0], args.work[1:], args.rate)
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(measure(Path(folder), args.rows, args.tokens, args.workers, args.rate)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
