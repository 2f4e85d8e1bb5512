"""Rows a second into and out of the ledger, and the memory of a coordinator that holds that many.

  python ops/bench/ledger.py --rows 1000000 --tokens 100
  python ops/bench/ledger.py --rows 10000000 --tokens 30 --results 100000

The steps are those of a run: requests into the ledger and their open rows into the backlog, results out of it, a
resume that fills the backlog from the file, answers read back. Each is timed once: the figure is memory, and the
order of magnitude of the rest.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from coordinator.ledger.ledger import Ledger
from coordinator.records import JobSpec, NewRequest, NewRow, OpenRow, Source
from coordinator.scheduling.backlog import Backlog
from fleet.config import StateDir
from fleet.job import Finish, Sampling, Task
from fleet.messages import RowResult

CHUNK = 1_000
#: Results an agent sends together.
COMMIT = 200
PLENTY = 1 << 60


def main() -> None:
    """Runs the steps and prints a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--tokens", type=int, default=100, help="mean prompt tokens of a row")
    parser.add_argument("--results", type=int, default=100_000, help="rows to commit results for")
    parser.add_argument("--folder", type=Path, help="where the ledger is made (a temporary folder)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        state = StateDir(Path(folder))
        run(state, args.rows, args.tokens, min(args.results, args.rows))


def run(state: StateDir, rows: int, tokens: int, results: int) -> None:
    """All steps over one ledger."""
    spec = JobSpec(task=Task.GENERATE, model="m", model_hash="0", inputs=("x",), output="o", options="{}")
    backlog = Backlog()
    with Ledger.open(state) as ledger:
        job = ledger.begin_job(spec)[0].id
        began = time.perf_counter()
        busy_s = 0.0
        for chunk in chunks(rows, tokens):
            start = time.perf_counter()
            backlog.add(ledger.add_requests(job, chunk))
            busy_s += time.perf_counter() - start
        ledger.finish_intake(job, "signature")
        tell("intake", rows, busy_s, f"of {time.perf_counter() - began:.1f} s with making the rows")
        start = time.perf_counter()
        for number in range(0, results, COMMIT):
            taken = backlog.take(rows=min(COMMIT, results - number), tokens=PLENTY)
            ledger.rows([row.id for row in taken])
            ledger.commit("bench", [answer(row) for row in taken])
        tell("take, read and commit", results, time.perf_counter() - start)
        size = sum(path.stat().st_size for path in state.root.glob("ledger*"))
        print(f"{'file':<24}{size / 1e6:>10.0f} MB  {size / rows:.0f} bytes a row")
        del backlog
    with Ledger.open(state) as ledger:
        start = time.perf_counter()
        job = ledger.begin_job(spec)[0].id
        backlog = Backlog()
        for opened in ledger.open_rows(job):
            backlog.add(opened)
        tell("resume", len(backlog), time.perf_counter() - start)
        start = time.perf_counter()
        read = sum(1 for _ in ledger.answers(job))
        tell("answers", read, time.perf_counter() - start)


def chunks(rows: int, tokens: int) -> Iterator[list[NewRequest]]:
    """Requests of one row each, `tokens` long in the mean, between a half and one and a half of it."""
    noise = os.urandom(4 * tokens * 64)
    sampling = Sampling()
    for start in range(0, rows, CHUNK):
        chunk = []
        for number in range(start, min(start + CHUNK, rows)):
            key = hashlib.sha256(number.to_bytes(8, "little")).digest()
            length = tokens // 2 + key[0] * tokens // 255
            offset = 4 * (key[1] % (64 * tokens - 2 * tokens))
            row = NewRow(
                key=key[:16], tokens=noise[offset : offset + 4 * max(length, 1)], max_tokens=128, sampling=sampling
            )
            chunk.append(
                NewRequest(custom_id=f"row-{number}", source=Source(file="/x.jsonl", line=number + 1), rows=(row,))
            )
        yield chunk


def answer(row: OpenRow) -> RowResult:
    """A result of some 100 characters."""
    return RowResult(id=row.id, text="x" * 100, finish=Finish.STOP, input_tokens=row.length, output_tokens=25)


def tell(step: str, rows: int, seconds: float, more: str = "") -> None:
    """One line: the step, its rows a second, and the most memory so far."""
    unit = 1 if sys.platform == "darwin" else 1 << 10
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    rate = rows / max(seconds, 1e-9)
    print(f"{step:<24}{rate:>10,.0f} rows/s  {seconds:.1f} s  peak {peak / 1e6:.0f} MB  {more}", flush=True)


if __name__ == "__main__":
    main()
