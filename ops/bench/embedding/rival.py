"""mlx-embeddings, driven from here in a process of its own; its interpreter runs `other.py`."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from ops.bench.embedding.taken import Taken
from worker.blas import engine_environment

#: Batch sizes and orders among which the other library's best is looked for.
GRID = [(size, order) for order in ("sorted", "unsorted") for size in (4, 8, 16, 32, 64)]


class Other:
    """mlx-embeddings in a process of its own."""

    def __init__(self, python: str, model: Path, texts: Sequence[list[int]], folder: Path) -> None:
        file = folder / "texts.json"
        file.write_text(json.dumps(texts))
        script = Path(__file__).parent / "other.py"
        self._child = subprocess.Popen(
            [python, str(script), str(model), str(file)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=engine_environment(os.environ),
        )
        self._answer()

    def _answer(self) -> str:
        assert self._child.stdout is not None
        line = self._child.stdout.readline()
        if not line:
            raise SystemExit("mlx-embeddings ended")
        return line

    def run(self, size: int, order: str) -> Taken:
        """All texts once."""
        assert self._child.stdin is not None
        self._child.stdin.write(f"{size} {order}\n")
        self._child.stdin.flush()
        wall, cpu = json.loads(self._answer())
        return wall, cpu

    def best(self) -> tuple[int, str]:
        """The fastest of the grid, by CPU seconds."""
        return min(GRID, key=lambda cell: self.run(*cell)[1])

    def end(self) -> None:
        """Ends the process."""
        self._child.communicate()
