"""The coordinator's side of Redis: shards into RQ queues, results out of streams, leases, control.

Whoever judges whether a shard is lost reads `queued` first, then `lease`, then empties `results`: an agent shows a
shard in its lease before it takes it off the queue, and until its results are out of the stream.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any

import redis
from redis.backoff import ConstantBackoff
from redis.retry import Retry
from rq import Queue
from rq.defaults import RQ_KEY_PREFIX
from rq.job import Job

from fleet import codec, keys
from fleet.errors import BrokerError, DecodeError
from fleet.messages import Beat, Cancel, Crashed, Finished, Message, Returned, SetCap, Shard, Stop

log = logging.getLogger(__name__)

#: A shard that an agent could not read is kept this long for a person to look at, seconds.
FAILURE_TTL_S = 600
#: Control messages kept for a worker; it reads each within a second.
CONTROL_LENGTH = 1000
_REGISTRIES = "wip|finished|failed|deferred|scheduled|canceled|ready"
#: Longest wait for one reply, seconds.
REPLY_S = 5.0
#: A pooled connection may be one to a broker that is gone: try again on a fresh one, with this pause, seconds.
RETRY_S = 0.05
RETRIES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """A live worker's last beat."""

    beat: Beat
    #: time left before it counts as lost, by the server's clock, milliseconds
    ttl_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueLine:
    """One queue as RQ has it."""

    queue: str
    #: shards that no agent has taken, and those it is just taking
    waiting: int
    taking: int
    #: shards by registry: those an agent works on, failed ones, ...
    registries: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """What the broker shows of a worker."""

    #: shards that no agent has taken (those it is just taking included)
    queued: frozenset[str]
    lease: Lease | None


class PlainJob(Job):  # type: ignore[misc]  # rq is read as untyped
    """Keeps a shard as it is: RQ's compression is half of all the coordinator's work (0.17 s of CPU per 1,000 rows of
    500 tokens, Xeon). RQ reads both."""

    def to_dict(self, include_meta: bool = True, include_result: bool = True) -> dict[str, Any]:
        """The job as RQ stores it."""
        plain, self._data = self.data, b""
        try:
            stored: dict[str, Any] = super().to_dict(include_meta, include_result)
        finally:
            self._data = plain
        return {**stored, "data": plain}


class Dispatch:
    """One client of the broker; raises BrokerError when the broker cannot be reached."""

    def __init__(self, url: str) -> None:
        self._redis: redis.Redis = redis.Redis.from_url(
            url, socket_timeout=REPLY_S, retry=Retry(ConstantBackoff(RETRY_S), RETRIES)
        )

    def close(self) -> None:
        """Lets go of the connections."""
        self._redis.close()

    def epoch(self) -> str | None:
        """The broker's epoch, None when it has none."""
        with _translated():
            value: Any = self._redis.get(keys.EPOCH)
        return value.decode() if value is not None else None

    def strange_keys(self) -> list[str]:
        """Keys that RQ shares among all its users and that hold something else in this Redis."""
        shared = [Queue.redis_queues_keys, f"{RQ_KEY_PREFIX}:workers"]
        with _translated(), self._redis.pipeline() as pipeline:
            for key in shared:
                pipeline.type(key)
            kinds = pipeline.execute()
        return [key for key, kind in zip(shared, kinds, strict=True) if kind not in (b"none", b"set")]

    def send(self, worker: str, shard: Shard, *, ahead: bool = False) -> None:
        """Puts `shard` at the end of the worker's queue, or ahead of all that waits there."""
        with _translated():
            self._queue(worker).enqueue_call(
                keys.SHARD_FUNCTION,
                args=(codec.encode(shard),),
                timeout=-1,
                result_ttl=0,
                failure_ttl=FAILURE_TTL_S,
                description=shard.id,
                job_id=shard.id,
                at_front=ahead,
            )

    def queued(self, worker: str) -> set[str]:
        """Ids of the shards that no agent has taken (those it is just taking included)."""
        queue = self._queue(worker)
        with _translated(), self._redis.pipeline() as pipeline:
            pipeline.lrange(queue.key, 0, -1)
            pipeline.lrange(queue.intermediate_queue_key, 0, -1)
            waiting, taking = pipeline.execute()
        return _ids(waiting, taking)

    def take_back(self, worker: str, shard_id: str) -> bool:
        """Removes the shard from the worker's queue; False when its agent has it already."""
        with _translated():
            if not self._redis.lrem(self._queue(worker).key, 1, shard_id):
                return False
            self._redis.delete(Job.key_for(shard_id))
        return True

    def lease(self, worker: str) -> Lease | None:
        """The worker's lease, None when it is lost or was never there."""
        with _translated(), self._redis.pipeline() as pipeline:
            pipeline.get(keys.lease(worker))
            pipeline.pttl(keys.lease(worker))
            data, ttl_ms = pipeline.execute()
        return None if data is None else _lease(worker, data, ttl_ms)

    def leases(self) -> list[Lease]:
        """Of every worker that has one, for looking only."""
        with _translated():
            found = sorted(key.decode() for key in self._redis.scan_iter(match=keys.lease("*")))
        leases = [self.lease(key.removeprefix(keys.lease(""))) for key in found]
        return [lease for lease in leases if lease is not None]

    def queues(self) -> list[QueueLine]:
        """Every queue with what its registries hold. Unlike `rq info`, which cleans them, it only reads."""
        with _translated():
            found: Any = self._redis.smembers(Queue.redis_queues_keys)
            names = sorted(key.decode().removeprefix(Queue.redis_queue_namespace_prefix) for key in found)
            return [self._queue_line(name) for name in names]

    def _queue_line(self, name: str) -> QueueLine:
        queue = self._queue(name)
        registries = _REGISTRIES.split("|")[:-1]
        with self._redis.pipeline() as pipeline:
            pipeline.llen(queue.key)
            pipeline.llen(queue.intermediate_queue_key)
            for registry in registries:
                pipeline.zcard(f"{RQ_KEY_PREFIX}:{registry}:{name}")
            waiting, taking, *held = pipeline.execute()
        return QueueLine(
            queue=name, waiting=waiting, taking=taking, registries=dict(zip(registries, held, strict=True))
        )

    def sights(self, workers: Sequence[str]) -> dict[str, Sight]:
        """What the broker shows of each worker now; a lease that cannot be read is logged and counts as none."""
        with _translated(), self._redis.pipeline() as pipeline:
            for worker in workers:  # in this order, see above
                queue = self._queue(worker)
                pipeline.lrange(queue.key, 0, -1)
                pipeline.lrange(queue.intermediate_queue_key, 0, -1)
                pipeline.get(keys.lease(worker))
                pipeline.pttl(keys.lease(worker))
            replies = iter(pipeline.execute())
        return {worker: _sight(worker, *islice(replies, 4)) for worker in workers}

    def heard(self, workers: Sequence[str], count: int) -> dict[str, list[tuple[str, Message]]]:
        """The oldest `count` entries that each worker wrote, those left out that wrote nothing; they stay until
        `delete`. An entry that is no message is logged, deleted and passed over."""
        if not workers:
            return {}
        with _translated():
            streams: Any = self._redis.xread({keys.results(worker): "0-0" for worker in workers}, count=count)
        found = dict(streams.items() if isinstance(streams, dict) else streams)
        told = {worker: found.get(keys.results(worker).encode(), ()) for worker in workers}
        return {worker: self._readable(worker, entries) for worker, entries in told.items() if entries}

    def results(self, worker: str, count: int) -> list[tuple[str, Message]]:
        """The same of one worker."""
        return self.heard([worker], count).get(worker, [])

    def _readable(self, worker: str, entries: Sequence[Any]) -> list[tuple[str, Message]]:
        good: list[tuple[str, Message]] = []
        bad: list[str] = []
        for raw_id, fields in entries:
            entry = raw_id.decode()
            try:
                good.append((entry, _report(fields)))
            except DecodeError as error:
                log.error("entry %s of worker %s is passed over: %s", entry, worker, _first_words(error))
                bad.append(entry)
        self.delete(worker, bad)
        return good

    def delete(self, worker: str, entry_ids: Sequence[str]) -> None:
        """Deletes entries that the ledger has, which tells the agent that it may forget them."""
        if entry_ids:
            with _translated():
                self._redis.xdel(keys.results(worker), *entry_ids)

    def control(self, worker: str, message: Cancel | SetCap | Stop) -> None:
        """Tells the worker something; it acts within about a second."""
        entry: Any = {keys.FIELD: codec.encode(message)}
        with _translated():
            self._redis.xadd(keys.control(worker), entry, maxlen=CONTROL_LENGTH, approximate=True)

    def purge(self, worker: str) -> None:
        """Deletes everything of the worker at once: queue, shards, registries, streams, lease. A worker that still
        lives misses its shards and drops them."""
        with _translated():
            owned = [key for key in self._redis.scan_iter(match="*", count=1000) if belongs(key.decode(), worker)]
            with self._redis.pipeline() as pipeline:
                queue_key = self._queue(worker).key
                pipeline.srem(Queue.redis_queues_keys, queue_key)
                registered = [key for key in owned if key.startswith(f"{RQ_KEY_PREFIX}:worker:".encode())]
                if registered:
                    pipeline.srem(f"{RQ_KEY_PREFIX}:workers", *registered)
                if owned:
                    pipeline.delete(*owned)
                pipeline.execute()

    def _queue(self, worker: str) -> Queue:
        return Queue(keys.queue(worker), connection=self._redis, serializer=codec.RqSerializer, job_class=PlainJob)


def _ids(waiting: Any, taking: Any) -> set[str]:
    # What is no text is no id of ours either, and is for its agent to pass over.
    return {entry.decode(errors="replace") for entry in (*waiting, *taking)}


def _sight(worker: str, waiting: Any, taking: Any, data: Any, ttl_ms: Any) -> Sight:
    queued = frozenset(_ids(waiting, taking))
    try:
        lease = None if data is None else _lease(worker, data, ttl_ms)
    except DecodeError as error:
        log.error("the lease of %s cannot be read: %s", worker, _first_words(error))
        lease = None
    return Sight(queued=queued, lease=lease)


def _lease(worker: str, data: bytes, ttl_ms: int) -> Lease:
    beat = codec.decode(data)
    if not isinstance(beat, Beat):
        raise DecodeError(f"the lease of {worker} holds a {type(beat).__name__}")
    return Lease(beat=beat, ttl_ms=ttl_ms)


def belongs(key: str, worker: str) -> bool:
    """True when `key` is one that we or RQ keep for `worker` alone."""
    if key in (keys.lease(worker), keys.results(worker), keys.control(worker)):
        return True
    rq, name = re.escape(RQ_KEY_PREFIX), re.escape(worker)
    of_queue = rf"{rq}:(queue|{_REGISTRIES}|workers|clean_registries):{name}(:.*)?"
    of_shard = rf"{rq}:(job|results|execution|executions):{name}-\d+(:.*)?"
    of_process = rf"{rq}:worker:{name}\.[^.:]+(:.*)?"
    return any(re.fullmatch(pattern, key) for pattern in (of_queue, of_shard, of_process))


def _report(fields: dict[bytes, bytes]) -> Message:
    message = codec.decode(fields.get(keys.FIELD, b""))
    if not isinstance(message, Finished | Crashed | Returned):
        raise DecodeError(f"a {type(message).__name__} is no result")
    return message


def _first_words(error: DecodeError) -> str:
    # The rest may quote the entry, and an entry may hold an answer's text.
    return str(error).partition(":")[0][:80]


@contextmanager
def _translated() -> Iterator[Any]:
    try:
        yield
    except redis.RedisError as error:
        raise BrokerError(f"the broker does not answer ({type(error).__name__})") from error
