"""A hundred thousand texts from a file to Parquet with MLX, once undisturbed and once killed twice in the middle."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from coordinator.ledger.ledger import Ledger
from tests.embedders import letters
from tests.encoder_models import tiny_encoder
from tests.runner import Fleet, alive, children, wait_until

pytestmark = [
    pytest.mark.mlx,
    pytest.mark.soak,
    pytest.mark.timeout(4 * 3600),
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
]

TEXTS = int(os.environ.get("FLEET_SOAK_TEXTS", "100000"))
#: Every so many texts one is over the model's 50 tokens and becomes several pieces.
LONG_EVERY = 500
#: What the command itself may hold.
MOST_BYTES = 600_000_000
#: A text's vector in another batch, in float32.
MOST_OFF = 1e-5


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tiny_encoder(tmp_path_factory.mktemp("model") / "tiny")
    letters().save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture(scope="module")
def backlog(tmp_path_factory: pytest.TempPathFactory) -> Path:
    draw = random.Random(5)
    path = tmp_path_factory.mktemp("backlog") / "texts.jsonl"
    with path.open("w") as stream:
        for number in range(TEXTS):
            words = 20 if number % LONG_EVERY == 0 else draw.randint(1, 6)
            text = " ".join([str(number), *(f"{draw.randrange(10**6)}" for _ in range(words))])
            stream.write(json.dumps({"id": f"t{number}", "text": text}) + "\n")
    return path


class Corpus:
    """A state folder of its own, and the command that embeds the corpus."""

    def __init__(self, folder: Path, backlog: Path, model: Path) -> None:
        folder.mkdir()
        self.fleet = Fleet(folder)
        self.out = folder / "out.parquet"
        self._command: list[str | Path] = ["run", "embed", backlog, "-m", model, "-o", self.out, "--json"]
        #: the most memory that a command held, of all so far
        self.most_bytes = 0

    def run(self, until: Callable[[], bool] = lambda: False) -> subprocess.Popen[str]:
        """Starts the command and watches it until it ends or `until()`."""
        process = self.fleet.start(*self._command)
        while process.poll() is None and not until():
            self.most_bytes = max(self.most_bytes, peak_bytes(process.pid))
            time.sleep(0.2)
        return process

    def finish(self) -> int:
        """Runs the command to its end; the texts it computed."""
        process = self.run()
        out, err = process.communicate()
        assert process.returncode == 0, err[-3000:]
        computed: int = json.loads(out)["computed_rows"]
        return computed

    def kill(self, at: int, *, whole: bool) -> set[str]:
        """Runs the command until so many texts are recorded and kills it, `whole` with all its processes at once; the
        keys of what is recorded once the last of them is gone."""
        process = self.run(lambda: self.fleet.counts().done >= at)
        assert process.poll() is None, f"it ended before {at} texts"
        tree = [process.pid, *children(process.pid)]
        assert len(tree) > 3, "broker, worker and engine run"
        for pid in tree if whole else tree[:1]:
            os.kill(pid, signal.SIGKILL)
        process.communicate()
        wait_until(lambda: not alive(tree), story="the end of all processes")
        with Ledger.read(self.fleet.state) as ledger:
            found = ledger._store.rows("SELECT hex(key) FROM row WHERE state = 1")
        return {key.lower() for (key,) in found}

    def table(self) -> pa.Table:
        return pq.read_table(self.out)


def peak_bytes(pid: int) -> int:
    """The most memory that a process has held; 0 when it has just ended."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM")), 0)


def vectors(table: pa.Table) -> np.ndarray:
    column = table.column("vector").combine_chunks()
    found: np.ndarray = column.flatten().to_numpy().reshape(len(column), -1)
    return found


def test_killed_twice_a_corpus_ends_as_undisturbed_and_no_recorded_text_is_computed_again(
    tmp_path: Path, backlog: Path, model: Path
) -> None:
    calm, hit = (Corpus(tmp_path / name, backlog, model) for name in ("calm", "hit"))
    began = time.monotonic()
    rows = calm.finish()
    print(f"\nundisturbed: {rows} rows in {time.monotonic() - began:.0f} s, at most {calm.most_bytes / 1e6:.0f} MB")

    kills: list[tuple[set[str], int]] = []
    for at, whole in ((TEXTS * 3 // 10, False), (TEXTS * 6 // 10, True)):
        recorded = hit.kill(at, whole=whole)
        kills.append((recorded, len(hit.fleet.computed())))
        assert at <= len(recorded) < rows
        print(f"killed with {len(recorded)} rows recorded, {kills[-1][1]} told by the engine")
    hit.finish()
    computed = hit.fleet.computed()
    print(f"killed twice: {len(computed)} rows computed, at most {hit.most_bytes / 1e6:.0f} MB")
    for recorded, before in kills:
        assert not recorded & set(computed[before:])

    assert max(calm.most_bytes, hit.most_bytes) <= MOST_BYTES
    expected, found = calm.table(), hit.table()
    assert list(dict.fromkeys(found.column("id").to_pylist())) == [f"t{number}" for number in range(TEXTS)]
    assert found.drop_columns("vector").equals(expected.drop_columns("vector"))
    assert np.abs(vectors(found) - vectors(expected)).max() <= MOST_OFF
    assert np.abs(np.linalg.norm(vectors(found), axis=1) - 1).max() <= MOST_OFF
    hit.fleet.validate()
