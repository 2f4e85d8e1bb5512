"""How soon `fleet --help`, `fleet --version` and `fleet jobs` answer: wall seconds, interleaved, first round dropped.

python ops/bench/startup.py [--rounds N] [--json]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

#: What a person should wait at most, seconds.
LIMIT_S = 0.4
#: A side that spreads more than this between its quartiles says nothing.
MAX_SPREAD = 0.10
COMMANDS = {"fleet --help": ["--help"], "fleet --version": ["--version"], "fleet jobs": ["jobs"]}


def run(arguments: list[str], state: Path) -> float:
    """Wall seconds of one command, with its exit code checked."""
    extra = ["--state-dir", str(state)] if arguments == ["jobs"] else []
    began = time.perf_counter()
    answer = subprocess.run([sys.executable, "-m", "fleet", *arguments, *extra], capture_output=True, text=True)
    seconds = time.perf_counter() - began
    if answer.returncode != 0:
        raise SystemExit(f"fleet {' '.join(arguments)} ended with {answer.returncode}: {answer.stderr.strip()}")
    return seconds


def make_ledger(state: Path) -> None:
    """A record with a job in it, so that `fleet jobs` has something to list."""
    from coordinator.ledger.ledger import Ledger
    from coordinator.records import JobSpec
    from fleet.config import StateDir
    from fleet.job import Task

    spec = JobSpec(task=Task.GENERATE, model="m", model_hash="00", inputs=("/in",), output="/out", options="{}")
    with Ledger.open(StateDir(state)) as ledger:
        ledger.begin_job(spec)


def spread(times: list[float]) -> float:
    """Distance of the quartiles over the median."""
    low, _, high = statistics.quantiles(times, n=4)
    return (high - low) / statistics.median(times)


def main() -> int:
    """Prints a table; 1 when a command is too slow or its times spread too far."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    with tempfile.TemporaryDirectory() as folder:
        make_ledger(Path(folder))
        for round_number in range(args.rounds + 1):
            for name, arguments in COMMANDS.items():
                seconds = run(arguments, Path(folder))
                if round_number:
                    times[name].append(seconds)
    rows = {name: {"median_s": statistics.median(all_s), "spread": spread(all_s)} for name, all_s in times.items()}
    if args.json:
        print(json.dumps(rows))
    else:
        for name, row in rows.items():
            steady = "" if row["spread"] <= MAX_SPREAD else "  (too noisy to report)"
            print(f"{name:<16} {row['median_s']:.3f} s  spread {row['spread']:.0%}  limit {LIMIT_S} s{steady}")
    return int(any(row["median_s"] > LIMIT_S or row["spread"] > MAX_SPREAD for row in rows.values()))


if __name__ == "__main__":
    sys.exit(main())
