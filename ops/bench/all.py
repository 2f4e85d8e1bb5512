"""Runs every benchmark of this folder, one after another, each in a process of its own; `make bench`.

python -m ops.bench.all [NAME...]
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent

#: Arguments of those that measure several things; the others measure theirs without any.
RUNS: dict[str, list[list[str]]] = {"decode": [["copies"], ["prefix"]], "embed": [["mixed"], ["long"]]}


def commands(names: list[str]) -> list[list[str]]:
    """What to run: the module's name and its arguments."""
    return [[name, *arguments] for name in names for arguments in RUNS.get(name, [[]])]


def main(chosen: list[str]) -> int:
    """1 when any of them failed or was too noisy to report, 2 for a name that is none."""
    names = sorted(path.stem for path in HERE.glob("*.py") if path.stem not in (Path(__file__).stem, "__init__"))
    if unknown := sorted(set(chosen) - set(names)):
        print(f"no benchmark {', '.join(unknown)}: there are {', '.join(names)}", file=sys.stderr)
        return 2
    failed = []
    for name, *arguments in commands(chosen or names):
        title = shlex.join([name, *arguments])
        print(f"== {title}", flush=True)
        command = [sys.executable, "-m", "worker.blas", sys.executable, "-m", f"ops.bench.{name}", *arguments]
        if subprocess.run(command, cwd=ROOT, check=False).returncode:
            failed.append(title)
    print(f"failed or too noisy: {', '.join(failed)}" if failed else "all benchmarks reported")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
