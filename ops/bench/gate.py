"""What the gate costs: the broker through TLS against its bare socket, from one client process.

  python -m ops.bench.gate
  python -m ops.bench.gate --rounds 5 --seconds 3

Three loads: small commands one by one (a beat, a look), results in pipelines (entries of 64 KiB), shards of 1 MiB taken
off. Sides are interleaved and the first round is dropped; a side that spreads over 10 % is marked as noisy. CPU is the
gate's own, a second of it per second of the load.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import redis

from coordinator.broker.broker import Broker, connect
from coordinator.control.processes import Processes
from coordinator.joining.accounts import Accounts
from coordinator.joining.certificate import Certificate
from coordinator.joining.gate import Gate
from coordinator.joining.users import Users
from fleet import keys
from fleet.address import Address
from fleet.config import StateDir
from worker.road import Road

WID = "0123456789ab"
ENTRY_BYTES = 64 << 10
SHARD_BYTES = 1 << 20
#: A side whose figures lie further apart says nothing.
MAX_SPREAD = 0.10

Load = Callable[[redis.Redis, redis.Redis], float]


def small(client: redis.Redis, _admin: redis.Redis) -> float:
    """One command; the unit is commands."""
    client.get(keys.EPOCH)
    return 1


def results(client: redis.Redis, admin: redis.Redis) -> float:
    """16 entries written at once, then deleted by the coordinator; the unit is MB."""
    with client.pipeline() as pipeline:
        for _ in range(16):
            pipeline.xadd(keys.results(WID), {keys.FIELD: bytes(ENTRY_BYTES)})
        pipeline.execute()
    admin.delete(keys.results(WID))
    return 16 * ENTRY_BYTES / 1e6


def shards(client: redis.Redis, admin: redis.Redis) -> float:
    """8 shards read; the unit is MB."""
    name = f"rq:job:{WID}-1"
    if not admin.exists(name):
        admin.hset(name, "data", bytes(SHARD_BYTES))
    for _ in range(8):
        client.hgetall(name)
    return 8 * SHARD_BYTES / 1e6


LOADS: dict[str, tuple[Load, str]] = {
    "small commands": (small, "/s"),
    "results": (results, "MB/s"),
    "shards": (shards, "MB/s"),
}


def rate(load: Load, client: redis.Redis, admin: redis.Redis, seconds: float) -> float:
    """Units a second."""
    done, began = 0.0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        done += load(client, admin)
    return done / (time.perf_counter() - began)


def spread(rates: list[float]) -> float:
    """How far they lie apart, as a share of their median."""
    return (max(rates) - min(rates)) / statistics.median(rates)


def cpu_s(pid: int) -> float:
    """CPU time a process has used, where the system tells it; else 0."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(words[11]) + int(words[12])) / 100


def main() -> int:
    """Prints a line for each load; 1 when one was too noisy to report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=4, help="the first is dropped")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each load on each side in a round")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        state = StateDir(Path(folder))
        state.make()
        users, processes = Users(Accounts(state)), Processes(state)
        broker = Broker(state, processes, users=users)
        broker.start()
        certificate = Certificate.of(state)
        gate = Gate(state, processes, broker.socket, certificate, port=0, local=True)
        gate.start()
        try:
            quiet = measure(broker, gate, users, certificate.path.read_text(), args.rounds, args.seconds)
        finally:
            gate.stop()
            broker.stop()
    return int(not quiet)


def measure(broker: Broker, gate: Gate, users: Users, certificate: str, rounds: int, seconds: float) -> bool:
    """All loads, both sides, interleaved; False when a side spread too far."""
    quiet = True
    admin = connect(broker.url)
    password = users.admit(admin, WID, "bench", "proof")
    sides = {
        "bare": connect(broker.url_of(f"{WID}:{password}")),
        "gate": Road(certificate, [Address("127.0.0.1", gate.port)]).client(WID, password),
    }
    for name, (load, unit) in LOADS.items():
        rates: dict[str, list[float]] = {side: [] for side in sides}
        share = 0.0
        for _ in range(rounds):
            for side, client in sides.items():
                before = cpu_s(gate.pid or 0)
                rates[side].append(rate(load, client, admin, seconds))
                share = (cpu_s(gate.pid or 0) - before) / seconds
        bare, through = (statistics.median(rates[side][1:]) for side in sides)
        quiet &= not (
            noisy := any((max(r[1:]) - min(r[1:])) / statistics.median(r[1:]) > MAX_SPREAD for r in rates.values())
        )
        print(
            f"{name:15} bare {bare:9,.0f} {unit}, gate {through:9,.0f} {unit}, {through / bare:.2f} of it, "
            f"gate's CPU {share:.2f}{', noisy' if noisy else ''}",
            flush=True,
        )
    for client in (admin, *sides.values()):
        client.close()
    return quiet


if __name__ == "__main__":
    sys.exit(main())
