"""Runs every benchmark of this folder, one after another, each in a process of its own; `make bench`.

python ops/bench/all.py [NAME...]
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def main(names: list[str]) -> int:
    """1 when any of them failed or was too noisy to report."""
    benches = sorted(path for path in HERE.glob("*.py") if path.name != Path(__file__).name)
    unknown = set(names) - {path.stem for path in benches}
    if unknown:
        print(f"no benchmark {', '.join(sorted(unknown))}: there are {', '.join(path.stem for path in benches)}")
        return 2
    failed = []
    for path in benches:
        if names and path.stem not in names:
            continue
        print(f"== {path.stem}", flush=True)
        if subprocess.run([sys.executable, "-m", "worker.blas", sys.executable, str(path)], check=False).returncode:
            failed.append(path.stem)
    print(f"failed or too noisy: {', '.join(failed)}" if failed else "all benchmarks reported")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
