"""Drives a real engine child over its link, as the agent does."""

from __future__ import annotations

import os
import queue
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Self, TypeVar

import numpy as np

from fleet.job import Sampling
from fleet.messages import Finished, Message, Ready, RowResult, RowWork, Shard
from worker.blas import engine_environment
from worker.link import Link

M = TypeVar("M", bound=Message)

#: Loading and testing a tiny model takes about 4 s on 2 cores.
START_S = 60.0
#: A shard of a tiny model takes well under a second.
FINISH_S = 60.0


class EngineDriver:
    """An engine child with everything it said so far."""

    def __init__(self, model: Path, folder: Path, *options: str, env: Mapping[str, str] | None = None) -> None:
        self.key_log = folder / "engine.keys"
        self.said: list[Message] = []
        self._arrived: queue.Queue[Message | None] = queue.Queue()
        ours, theirs = socket.socketpair()
        self.log = folder / "engine.log"
        with theirs, self.log.open("ab") as log:
            command = [sys.executable, "-m", "worker.engine", "--fd", str(theirs.fileno()), "--model", str(model)]
            command += ["--hash-cache", str(folder / "hashes.json"), "--key-log", str(self.key_log), *options]
            self.process = subprocess.Popen(
                command,
                pass_fds=[theirs.fileno()],
                env=engine_environment({**os.environ, **(env or {})}),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self.link = Link(ours)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read(self) -> None:
        while (message := self.link.receive()) is not None:
            self._arrived.put(message)
        self._arrived.put(None)

    def until(self, done: Callable[[], object], limit_s: float = START_S) -> None:
        """Collects messages until `done()`; AssertionError with the engine's log when it never is."""
        deadline = time.monotonic() + limit_s
        while not done():
            try:
                message = self._arrived.get(timeout=max(0.01, deadline - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"the engine said nothing more\n{self.log.read_text()}") from None
            if message is None:
                raise AssertionError(f"the engine ended, status {self.process.wait()}\n{self.log.read_text()}")
            self.said.append(message)

    def ready(self) -> Ready:
        """Waits for Ready."""
        self.until(lambda: self.heard(Ready))
        return self.heard(Ready)[0]

    def heard(self, kind: type[M]) -> list[M]:
        """The messages of one kind so far."""
        return [message for message in self.said if isinstance(message, kind)]

    def results(self) -> dict[int, RowResult]:
        """Results so far by row id; AssertionError when a row came twice."""
        rows = [row for message in self.heard(Finished) for row in message.rows]
        assert len({row.id for row in rows}) == len(rows), "a row was reported twice"
        return {row.id: row for row in rows}

    def finish(self, ids: Sequence[int], limit_s: float = FINISH_S) -> dict[int, RowResult]:
        """Waits until these rows are finished."""
        self.until(lambda: set(ids) <= set(self.results()), limit_s)
        return self.results()

    def close(self) -> int:
        """Ends the link, and by that the engine; its exit status."""
        self.link.close()
        try:
            return self.process.wait(60)
        finally:
            self.process.kill()
            self._reader.join(10)


def shard(
    rows: Mapping[int, Sequence[int]],
    *,
    model_hash: str,
    max_tokens: int = 8,
    sampling: Sampling | None = None,
    prefix: Sequence[int] = (),
    exclusive: bool = False,
    cap: int = 0,
    id: str = "w-0",
) -> Shard:
    """A shard of rows given as id -> tokens; a row's key is its id."""
    return Shard(
        id=id,
        job=1,
        model="model",
        model_hash=model_hash,
        sampling=sampling or Sampling(),
        prefix=packed(prefix),
        rows=tuple(
            RowWork(id=row, key=key_of(row), tokens=packed(tokens), max_tokens=max_tokens)
            for row, tokens in rows.items()
        ),
        exclusive=exclusive,
        cap=cap,
    )


def key_of(row: int) -> bytes:
    """The key that `shard` gives a row."""
    return row.to_bytes(16, "big")


def packed(tokens: Sequence[int]) -> bytes:
    """Tokens as they travel."""
    return np.array(tokens, dtype="<u4").tobytes()
