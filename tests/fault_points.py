"""`python -m tests.fault_points COMMAND...` is `fleet COMMAND...`, broken in the way that the environment says.

FAULT_KILL="LABEL:N,..." kills the process with SIGKILL when it comes to a labelled point (`POINTS`) for the N-th time.
FAULT_TWICE=1 delivers every shard, order and report twice, the copy at once or with the next one.
FAULT_CLOCK_S=SECONDS has the wall clock of this process off by so much.
FAULT_MAXMEMORY=BYTES is the broker's limit.
Whoever starts a broker also writes its address, password included, to the file FAULT_BROKER, for the test to use.
"""

from __future__ import annotations

import datetime
import functools
import importlib
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

#: Label -> (module, class or empty, function, whether the point is after it).
POINTS: dict[str, tuple[str, str, str, bool]] = {
    # the coordinator, on the way of a row
    "before intake's commit": ("coordinator.ledger.ledger", "Ledger", "add_requests", False),
    "after intake's commit": ("coordinator.ledger.ledger", "Ledger", "add_requests", True),
    "before the send": ("coordinator.broker.dispatch", "Dispatch", "send", False),
    "after the send": ("coordinator.broker.dispatch", "Dispatch", "send", True),
    "before the ledger's commit": ("coordinator.ledger.ledger", "Ledger", "commit", False),
    "inside the ledger's commit": ("coordinator.ledger.results", "", "record_results", True),
    "after the ledger's commit": ("coordinator.ledger.ledger", "Ledger", "commit", True),
    "before the stream's delete": ("coordinator.broker.dispatch", "Dispatch", "_drop", False),
    "after the stream's delete": ("coordinator.broker.dispatch", "Dispatch", "_drop", True),
    "before the purge": ("coordinator.broker.dispatch", "Dispatch", "purge", False),
    "after the purge": ("coordinator.broker.dispatch", "Dispatch", "purge", True),
    "before the output": ("coordinator.control.job_office", "", "write_results", False),
    "after the output": ("coordinator.control.job_office", "", "write_results", True),
    "before the job's end": ("coordinator.ledger.ledger", "Ledger", "end_job", False),
    "after the job's end": ("coordinator.ledger.ledger", "Ledger", "end_job", True),
    # the worker
    "before the taking": ("worker.agent", "Agent", "execute_job", False),
    "inside the taking": ("worker.agent", "Agent", "prepare_job_execution", False),
    "after the taking": ("worker.agent", "Agent", "execute_job", True),
    "before the report": ("worker.pump", "Pump", "_in_one", False),
    "after the report": ("worker.pump", "Pump", "_in_one", True),
    "before the shard's end": ("worker.agent", "Agent", "complete", False),
    "after the shard's end": ("worker.agent", "Agent", "complete", True),
    "after the beat": ("worker.heartbeat", "Heartbeat", "beat", True),
}


def wrap(module: str, owner: str, name: str, make: Callable[[Any], Callable[..., Any]]) -> None:
    """Puts `make(function)` in the place of a function."""
    place = importlib.import_module(module)
    place = getattr(place, owner) if owner else place
    before = getattr(place, name)
    setattr(place, name, functools.wraps(before)(make(before)))


def kill_at(label: str, count: int) -> None:
    """Ends this process when it comes to the point for the `count`-th time."""
    module, owner, name, after = POINTS[label]
    left = count

    def pass_by(args: tuple[Any, ...]) -> None:
        nonlocal left
        if name == "_in_one" and args[1] != "XADD":
            return
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def make(before: Any) -> Callable[..., Any]:
        def passing(*args: Any, **more: Any) -> Any:
            if not after:
                pass_by(args)
            result = before(*args, **more)
            if after:
                pass_by(args)
            return result

        return passing

    wrap(module, owner, name, make)


def part_deletes() -> None:
    """Gives the deletes that delete something a name of their own."""
    from coordinator.broker.dispatch import Dispatch

    delete = Dispatch.delete
    Dispatch._drop = delete  # type: ignore[attr-defined]

    def chosen(self: Any, worker: str, entries: Any) -> None:
        if entries:
            self._drop(worker, entries)

    Dispatch.delete = chosen  # type: ignore[method-assign]


def deliver_twice() -> None:
    """Shards and orders are sent twice, reports heard twice: in one reading, and in the next."""
    from coordinator.broker.dispatch import Dispatch

    for name in ("send", "control"):
        wrap(
            "coordinator.broker.dispatch",
            "Dispatch",
            name,
            lambda before: lambda *a, **k: (before(*a, **k), before(*a, **k))[0],
        )
    heard, again = Dispatch.heard, {}

    def twice(self: Any, workers: Any, count: int) -> Any:
        found = heard(self, workers, count)
        told = {worker: [*again.pop(worker, ()), *entries, *entries] for worker, entries in found.items()}
        again.update(found)
        return told

    Dispatch.heard = twice  # type: ignore[method-assign]
    wrap("worker.pump", "Pump", "_in_one", lambda before: lambda *a: (a[1] == "XADD" and before(*a), before(*a))[1])


def set_clock(off_s: float) -> None:
    """The wall clock of Python, of RQ and of the log is off from here on."""
    real = time.time
    time.time = lambda: real() + off_s

    class Shifted(datetime.datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return super().now(tz) + datetime.timedelta(seconds=off_s)

    datetime.datetime = Shifted  # type: ignore[misc]


def tell_broker(path: str, limit: str) -> None:
    """Writes the address of each broker that is started; `limit` is its memory."""
    from coordinator.broker import broker

    if limit:
        broker.CONFIG["maxmemory"] = limit

    def make(before: Any) -> Callable[..., Any]:
        def start(self: Any) -> None:
            before(self)
            Path(path).write_text(self.url)

        return start

    wrap("coordinator.broker.broker", "Broker", "start", make)


def arm() -> None:
    """Does what the environment says."""
    told = os.environ
    if off_s := float(told.get("FAULT_CLOCK_S", "0")):
        set_clock(off_s)
    command = sys.argv[1] if len(sys.argv) > 1 else ""
    if command == "up":
        tell_broker(told["FAULT_BROKER"], told.get("FAULT_MAXMEMORY", ""))
        part_deletes()
    if told.get("FAULT_TWICE") and command in ("up", "join"):
        deliver_twice()
    for fault in filter(None, told.get("FAULT_KILL", "").split(",")):
        label, _, count = fault.rpartition(":")
        kill_at(label, int(count))


if __name__ == "__main__":
    arm()
    from fleet.cli import main

    sys.exit(main())
