"""A broker in memory on a simulated clock, and the two ends of the wire to it, which lose, delay and repeat calls."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import redis

from coordinator.broker.dispatch import Lease, Sight
from fleet import codec, keys
from fleet.errors import BrokerError
from fleet.messages import Beat, Message, Shard


@dataclass(slots=True)
class Store:
    """What a broker holds, and loses with its process."""

    strings: dict[str, tuple[bytes, float | None]] = field(default_factory=dict)
    streams: dict[str, list[tuple[bytes, dict[bytes, bytes]]]] = field(default_factory=lambda: defaultdict(list))
    #: by worker: ids of shards that wait, and of those that an agent is just taking
    waiting: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    taking: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    shards: dict[str, bytes] = field(default_factory=dict)


class Broker:
    """The server: also what `Watch` asks whether it lives, and tells to begin anew."""

    foreign = False

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._starts = self._entries = 0
        self.epoch = ""
        self.up = False
        self.store = Store()

    def alive(self) -> bool:
        return self.up

    def end(self) -> None:
        """It is killed: everything in it is gone."""
        self.up, self.store = False, Store()

    def restart(self) -> None:
        """Another one, at the same place."""
        self.up, self.store = True, Store()
        self.renew_epoch()

    def wipe(self) -> None:
        """Everything in it is gone, and it runs on."""
        self.store = Store()

    def renew_epoch(self) -> None:
        """As the coordinator does when it finds none."""
        self._starts += 1
        self.epoch = f"epoch-{self._starts}"
        self.store.strings[keys.EPOCH] = (self.epoch.encode(), None)

    def get(self, key: str) -> bytes | None:
        value, expires = self.store.strings.get(key, (None, None))
        return None if expires is not None and expires <= self._clock() else value

    def ttl_ms(self, key: str) -> int:
        expires = self.store.strings[key][1]
        return int(1000 * (expires - self._clock())) if expires is not None else -1

    def apply(self, *command: Any) -> Any:
        """One command's reply."""
        match command:
            case ("GET", key):
                return self.get(key)
            case ("SET", key, value, seconds):
                self.store.strings[key] = (value, self._clock() + seconds)
            case ("DEL", key):
                self.store.strings.pop(key, None)
            case ("XADD", stream, "*", name, data):
                self._entries += 1
                entry = f"{self._entries}-0".encode()
                self.store.streams[stream].append((entry, {name: data}))
                return entry
            case ("XRANGE", stream, "-", "+", "COUNT", count):
                return self.store.streams[stream][:count]
            case ("XAFTER", stream, cursor):
                number = int(cursor.partition("-")[0])
                return [entry for entry in self.store.streams[stream] if int(entry[0].partition(b"-")[0]) > number]
            case ("HEXISTS", key):
                return key in self.store.shards
            case ("HGET", key):
                return self.store.shards.get(key)
            case ("LMOVE", worker):
                waiting = self.store.waiting[worker]
                if waiting:
                    self.store.taking[worker].append(waiting.pop(0))
                    return self.store.taking[worker][-1]
            case ("TAKING", worker):
                return list(self.store.taking[worker])
            case ("TAKEN", worker, shard_id):
                self.store.taking[worker] = [other for other in self.store.taking[worker] if other != shard_id]
            case ("FINISH", shard_id):
                self.store.shards.pop(shard_id, None)
            case _:
                raise ValueError(command[0])
        return None


@dataclass(slots=True, kw_only=True)
class Wire:
    """One machine's way to the broker. Of `trouble` of its calls a third each never arrive, are done but not answered,
    and are done later than their caller gave up."""

    broker: Broker
    draw: random.Random
    clock: Callable[[], float]
    trouble: float = 0.0
    #: cut until then, seconds
    cut_until: float = 0.0
    #: (when, epoch, commands) of calls that are still under way
    late: list[tuple[float, str, Sequence[Sequence[Any]]]] = field(default_factory=list)

    @property
    def open(self) -> bool:
        return self.broker.up and self.clock() >= self.cut_until

    def call(self, *commands: Sequence[Any]) -> list[Any]:
        """The replies, all commands as of one moment; ConnectionError when they do not come back."""
        if not self.open:
            raise redis.ConnectionError
        fate = self.draw.random() / self.trouble if self.trouble else 1.0
        if fate < 1 / 3:
            raise redis.ConnectionError
        if fate < 2 / 3:
            self.late.append((self.clock() + self.draw.uniform(0.1, 6.0), self.broker.epoch, commands))
            raise redis.TimeoutError
        replies = [self.broker.apply(*command) for command in commands]
        if fate < 1:
            raise redis.ConnectionError
        return replies

    def deliver_late(self) -> None:
        """Does what arrives now. A connection ends with its server, and what is on it."""
        due = [call for call in self.late if call[0] <= self.clock()]
        self.late = [call for call in self.late if call[0] > self.clock()]
        for _, epoch, commands in due:
            if self.broker.up and self.broker.epoch == epoch:
                for command in commands:
                    self.broker.apply(*command)


class WorkerClient:
    """As much of a Redis client as the heartbeat, the pump and the control thread use."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._piped: list[Sequence[Any]] | None = None

    def get(self, key: str) -> Any:
        return self._do("GET", key)

    def set(self, key: str, value: bytes, *, px: int) -> Any:
        return self._do("SET", key, value, px / 1000)

    def delete(self, key: str) -> Any:
        return self._do("DEL", key)

    def hexists(self, key: str, _field: str) -> Any:
        return self._do("HEXISTS", key)

    def xread(self, streams: dict[str, str], *, block: int | None) -> Any:
        del block
        ((stream, cursor),) = streams.items()
        entries = self._do("XAFTER", stream, cursor)
        return [(stream.encode(), entries)] if entries else []

    def execute_command(self, *command: Any) -> Any:
        return self._do(*command)

    @contextmanager
    def pipeline(self) -> Iterator[WorkerClient]:
        piped = WorkerClient(self._wire)
        piped._piped = []
        yield piped

    def execute(self) -> list[Any]:
        assert self._piped is not None
        return self._wire.call(*self._piped)

    def _do(self, *command: Any) -> Any:
        if self._piped is not None:
            self._piped.append(command)
            return None
        return self._wire.call(command)[0]


class Crash(Exception):  # noqa: N818 (it is no error: the machine's power goes)
    """Raised inside the coordinator where it is to be killed; leaves its loop by way of everything."""


class CoordinatorEnd:
    """Stands where `Dispatch` does. `crash` is asked before and after each call whether the power goes now.

    A call that got no answer is made again, as redis-py does: so what it does may be done twice.
    """

    def __init__(self, broker: Broker, draw: random.Random, trouble: float, crash: Callable[[str], bool]) -> None:
        self._broker = broker
        self._draw = draw
        self._trouble = trouble
        self._crash = crash

    def send(self, worker: str, shard: Shard, *, ahead: bool = False) -> None:
        def put() -> None:
            self._broker.store.shards[shard.id] = codec.encode(shard)
            waiting = self._broker.store.waiting[worker]
            waiting.insert(0 if ahead else len(waiting), shard.id)

        self._call("send", put)

    def epoch(self) -> str | None:
        def read() -> str | None:
            value = self._broker.get(keys.EPOCH)
            return value.decode() if value is not None else None

        return self._call("epoch", read)

    def queued(self, worker: str) -> set[str]:
        return self._call("queued", lambda: set(self._sight(worker).queued))

    def sights(self, workers: Sequence[str]) -> dict[str, Sight]:
        return self._call("sights", lambda: {worker: self._sight(worker) for worker in workers})

    def _sight(self, worker: str) -> Sight:
        store, key = self._broker.store, keys.lease(worker)
        data = self._broker.get(key)
        beat = codec.decode(data) if data is not None else None
        assert beat is None or isinstance(beat, Beat)
        return Sight(
            queued=frozenset({*store.waiting[worker], *store.taking[worker]}),
            lease=Lease(beat=beat, ttl_ms=self._broker.ttl_ms(key)) if beat else None,
        )

    def heard(self, workers: Sequence[str], count: int) -> dict[str, list[tuple[str, Message]]]:
        def read() -> dict[str, list[tuple[str, Message]]]:
            streams = {worker: self._broker.store.streams[keys.results(worker)][:count] for worker in workers}
            return {
                worker: [(entry.decode(), codec.decode(fields[keys.FIELD])) for entry, fields in entries]
                for worker, entries in streams.items()
                if entries
            }

        return self._call("heard", read)

    def delete(self, worker: str, entries: Sequence[str]) -> None:
        def remove() -> None:
            stream = self._broker.store.streams[keys.results(worker)]
            stream[:] = [entry for entry in stream if entry[0].decode() not in entries]

        self._call("delete", remove)

    def control(self, worker: str, message: Message) -> None:
        command = ("XADD", keys.control(worker), "*", keys.FIELD, codec.encode(message))
        self._call("control", lambda: self._broker.apply(*command))

    def take_back(self, worker: str, shard_id: str) -> bool:
        def take() -> bool:
            waiting = self._broker.store.waiting[worker]
            if shard_id not in waiting:
                return False
            waiting.remove(shard_id)
            self._broker.store.shards.pop(shard_id, None)
            return True

        return self._call("take_back", take)

    def purge(self, worker: str) -> None:
        def remove() -> None:
            store = self._broker.store
            for shard_id in [shard_id for shard_id in store.shards if shard_id.rpartition("-")[0] == worker]:
                del store.shards[shard_id]
            store.strings.pop(keys.lease(worker), None)
            for held in (store.waiting, store.taking):
                held.pop(worker, None)
            for stream in (keys.results(worker), keys.control(worker)):
                store.streams.pop(stream, None)

        self._call("purge", remove)

    def _call(self, name: str, work: Callable[[], Any]) -> Any:
        self._end_here(f"before {name}")
        if not self._broker.up:
            raise BrokerError("the broker does not answer")
        if self._draw.random() < self._trouble:
            work()  # done, and its answer lost
            self._end_here(f"twice {name}")
        answer = work()
        self._end_here(f"after {name}")
        return answer

    def _end_here(self, label: str) -> None:
        if self._crash(label):
            raise Crash(label)
