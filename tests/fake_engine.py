"""An engine child without a model: speaks the link, answers with a function of the row's key, dies on request.

Environment: FAKE_CAP rows (8), FAKE_STEP_S seconds a step (0.002), FAKE_LOAD_S seconds to load (0),
FAKE_DIMENSIONS of a vector (8), FAKE_REFUSE a reason, FAKE_CRASH_KEYS / FAKE_STALL_KEYS hex keys,
FAKE_CRASH_ABOVE rows (0), FAKE_FAIL_LOADS a file that holds how many loads still fail.
"""

import argparse
import math
import os
import queue
import signal
import socket
import struct
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

from fleet.job import Embedding, Finish
from fleet.messages import (
    Admitted,
    Cancel,
    Figures,
    Finished,
    Pulse,
    Ready,
    Refused,
    RowResult,
    RowWork,
    SetCap,
    Shard,
)
from worker.link import Link


def vector(key: bytes, embedding: Embedding) -> bytes:
    """The vector every run gives for a row, of unit length."""
    size = embedding.dimensions or int(os.environ.get("FAKE_DIMENSIONS", "8"))
    numbers = [key[index % len(key)] - 127.5 for index in range(size)]
    length = math.sqrt(sum(number * number for number in numbers))
    code = "e" if embedding.dtype == "float16" else "f"
    return struct.pack(f"<{len(numbers)}{code}", *(number / length for number in numbers))


def answer(key: bytes) -> str:
    """The text every run gives for a row."""
    return f"answer to {key.hex()}"


def hex_keys(name: str) -> set[bytes]:
    return {bytes.fromhex(key) for key in os.environ.get(name, "").split(",") if key}


class FakeEngine:
    def __init__(self, link: Link, cap: int, key_log: Path | None) -> None:
        self.link = link
        self.cap = self.own_cap = cap
        self.key_log = key_log
        self.inbox: queue.SimpleQueue = queue.SimpleQueue()
        self.waiting: list = []  # (row, shard)
        self.batch: dict = {}  # id -> [row, shard, tokens]
        self.figures = Figures()
        self.pulsed = 0.0
        self.stepped = time.monotonic()

    def read(self) -> None:
        while (message := self.link.receive()) is not None:
            self.inbox.put(message)
        os._exit(0)

    def run(self) -> None:
        step_s = float(os.environ.get("FAKE_STEP_S", "0.002"))
        crash, stall = hex_keys("FAKE_CRASH_KEYS"), hex_keys("FAKE_STALL_KEYS")
        above = int(os.environ.get("FAKE_CRASH_ABOVE", "0"))
        while True:
            self.take()
            self.admit()
            keys = {row.key for row, _, _ in self.batch.values()}
            if keys & crash and len(self.batch) > above:
                os.kill(os.getpid(), signal.SIGABRT)
            if keys & stall:
                time.sleep(3600)
            time.sleep(step_s)
            self.step()

    def take(self) -> None:
        while True:
            try:
                message = self.inbox.get(timeout=0.0 if self.batch else 0.05)
            except queue.Empty:
                return
            if isinstance(message, Shard):
                self.waiting += [(row, message) for row in message.rows]
            elif isinstance(message, Cancel):
                gone = set(message.rows)
                self.waiting = [(row, shard) for row, shard in self.waiting if row.id not in gone]
                self.batch = {key: value for key, value in self.batch.items() if key not in gone}
            elif isinstance(message, SetCap):
                self.cap = min(message.rows or self.own_cap, self.own_cap)

    def admit(self) -> None:
        if not self.waiting or any(shard.exclusive for _, shard, _ in self.batch.values()):
            return
        if self.waiting[0][1].exclusive and self.batch:
            return
        first = self.waiting[0][1]
        cap = min(self.cap, first.cap or self.cap)
        room = max(0, cap - len(self.batch))
        rows = [pair for pair in self.waiting if not first.exclusive or pair[1].id == first.id][:room]
        if rows:
            self.waiting = [pair for pair in self.waiting if pair not in rows]
            self.link.send(Admitted(rows=tuple(row.id for row, _ in rows)))
            self.batch.update((row.id, [row, shard, 0]) for row, shard in rows)

    def step(self) -> None:
        ended = []
        if self.batch:
            self.figures = replace(
                self.figures,
                steps=self.figures.steps + 1,
                step_rows=self.figures.step_rows + len(self.batch),
                step_cap=self.figures.step_cap + self.cap,
                output_tokens=self.figures.output_tokens + sum(row.max_tokens > 0 for row, _, _ in self.batch.values()),
                decode_s=self.figures.decode_s + time.monotonic() - self.stepped,
            )
        for slot in self.batch.values():
            slot[2] += 1
            if slot[2] >= slot[0].max_tokens:
                ended.append(slot[0])
        shards = {row.id: self.batch[row.id][1] for row in ended}
        texts = [row for row in ended if shards[row.id].sampling.embedding]
        self.figures = replace(
            self.figures,
            prompt_tokens=self.figures.prompt_tokens + sum(len(row.tokens) // 4 for row in texts),
            prefill_s=self.figures.prefill_s + (time.monotonic() - self.stepped if texts else 0.0),
        )
        self.stepped = time.monotonic()
        for row in ended:
            del self.batch[row.id]
            if self.key_log:
                with self.key_log.open("a") as log:
                    log.write(row.key.hex() + "\n")
        if ended:
            self.link.send(Finished(rows=tuple(result(row, shards[row.id]) for row in ended)))
        if time.monotonic() - self.pulsed > 0.2:
            self.pulsed = time.monotonic()
            running = tuple((key, slot[2]) for key, slot in self.batch.items())
            self.link.send(Pulse(running=running, waiting=len(self.waiting), figures=self.figures))


def result(row: RowWork, shard: Shard) -> RowResult:
    embedding = shard.sampling.embedding
    return RowResult(
        id=row.id,
        text="" if embedding else answer(row.key),
        finish=Finish.STOP if embedding else Finish.LENGTH,
        input_tokens=(len(shard.prefix) + len(row.tokens)) // 4,
        output_tokens=row.max_tokens,
        vector=vector(row.key, embedding) if embedding else b"",
    )


def fail_this_load() -> bool:
    path = os.environ.get("FAKE_FAIL_LOADS")
    if not path:
        return False
    left = int(Path(path).read_text())
    Path(path).write_text(str(max(0, left - 1)))
    return left > 0


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--hash", required=True)
    parser.add_argument("--key-log", type=Path)
    parser.add_argument("--cap", type=int, default=0)
    parser.add_argument("--embed", action="store_true")
    for name in ("--model", "--hash-cache", "--memory", "--knees"):
        parser.add_argument(name)
    args = parser.parse_args()
    link = Link(socket.socket(fileno=args.fd))
    cap = args.cap or int(os.environ.get("FAKE_CAP", "8"))
    engine = FakeEngine(link, cap, args.key_log)
    threading.Thread(target=engine.read, daemon=True).start()
    time.sleep(float(os.environ.get("FAKE_LOAD_S", "0")))
    if fail_this_load():
        return 3
    if reason := os.environ.get("FAKE_REFUSE"):
        link.send(Refused(reason=reason))
        return 1
    link.send(Ready(model_hash=args.hash, cap=cap, kv_bytes=1, budget_bytes=1 << 30, context_tokens=4096))
    engine.run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
