"""The RQ worker: takes shards off this machine's queue while they are wanted, finishes their RQ jobs when told to.

It never forks, imports nothing that Redis names, and cleans no registry: the coordinator alone requeues.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import redis
from redis.exceptions import NoPermissionError
from rq import Queue
from rq.exceptions import DequeueTimeout, DeserializationError, InvalidJobOperation, NoSuchJobError, StopRequested
from rq.executions import Execution
from rq.job import Job
from rq.utils import now
from rq.worker.base import BaseWorker, WorkerStatus

from fleet import codec, keys
from fleet.errors import DecodeError
from fleet.messages import Shard
from worker.desk import Desk

log = logging.getLogger(__name__)

#: RQ blocks on the queue for this minus 15 seconds: one second, so that a stop or a new broker is seen soon.
WORKER_TTL_S = 16
#: How long the agent waits for room before it looks whether it should go on at all, seconds.
ROOM_S = 1.0
#: Characters of an id that is not ours in the log.
MAX_ID = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticket:
    """RQ's side of a held shard."""

    job: Job
    queue: Queue
    execution: Execution


class Tickets:
    """RQ's side of the shards taken from the present broker; outlives an agent, not a broker."""

    def __init__(self) -> None:
        self._by_shard: dict[str, Ticket] = {}
        self._lock = threading.Lock()

    def add(self, shard_id: str, ticket: Ticket) -> None:
        """Remembers a taken shard's."""
        with self._lock:
            self._by_shard[shard_id] = ticket

    def take(self, shard_id: str) -> Ticket | None:
        """Removes and returns it; None when its broker is gone or it was taken before."""
        with self._lock:
            return self._by_shard.pop(shard_id, None)

    def forget_all(self) -> None:
        """The broker was wiped: nothing of them is left there."""
        with self._lock:
            self._by_shard.clear()

    def all(self) -> dict[str, Ticket]:
        """A copy."""
        with self._lock:
            return dict(self._by_shard)

    def missing(self, client: redis.Redis, epoch: str) -> list[str]:
        """Shards that the coordinator deleted from the broker of `epoch`."""
        tickets = self.all()
        if not tickets:
            return []
        with client.pipeline() as pipeline:
            pipeline.get(keys.EPOCH)
            for ticket in tickets.values():
                pipeline.hexists(ticket.job.key, "data")  # a late heartbeat may have made a job of nothing else
            found, *exist = pipeline.execute()
        if found is None or found.decode() != epoch:
            return []
        return [shard_id for shard_id, there in zip(tickets, exist, strict=True) if not there]


class Agent(BaseWorker):  # type: ignore[misc]  # rq is read as untyped
    """An RQ worker for one connection to one broker; the supervisor makes another when it ends."""

    log_result_lifespan = False

    def __init__(
        self,
        desk: Desk,
        tickets: Tickets,
        client: redis.Redis,
        name: str,
        *,
        announce: Callable[[], object],
        catch_up: Callable[[], object],
    ) -> None:
        """`announce` shows in the lease what is held; `catch_up` obeys what the coordinator has said so far."""
        super().__init__(
            [keys.queue(desk.worker)],
            name=name,
            connection=client,
            worker_ttl=WORKER_TTL_S,
            serializer=codec.RqSerializer,
            log_job_description=False,
        )
        self._desk = desk
        self._tickets = tickets
        self._announce = announce
        self._catch_up = catch_up
        self._epoch = desk.epoch

    # -- the loop ------------------------------------------------------------------------------------

    def dequeue_job_and_maintain_ttl(self, timeout: int | None, max_idle_time: int | None = None) -> tuple[Job, Queue]:
        """The next shard, once one is wanted; StopRequested when the worker stops or the broker is another."""
        del max_idle_time
        self.set_state(WorkerStatus.IDLE)
        while True:
            self.heartbeat()
            if self._desk.stopping or self._desk.epoch != self._epoch:
                raise StopRequested
            if not self._desk.await_room(ROOM_S):
                continue
            try:
                job, queue = self.queue_class.dequeue_any(
                    self._ordered_queues,
                    timeout,
                    connection=self.connection,
                    job_class=self.job_class,
                    serializer=self.serializer,
                    death_penalty_class=self.death_penalty_class,
                )
            except DequeueTimeout:
                continue
            except (
                NoPermissionError,
                ValueError,
                TypeError,
            ):  # an id that is not one of ours, or no text: it is passed over
                self.recover()
                continue
            job.redis_server_version = self.get_redis_server_version()
            return job, queue

    def execute_job(self, job: Job, queue: Queue) -> None:
        """Takes the shard in. It is shown in the lease before it leaves the queue, so that it is never nowhere."""
        try:
            shard = shard_of(job)
        except DecodeError as error:
            self._refuse(job, queue, error)
            return
        self._catch_up()
        execution = self.prepare_execution(job)
        self._tickets.add(shard.id, Ticket(job=job, queue=queue, execution=execution))
        self._desk.take(shard)
        self._announce()
        self.prepare_job_execution(job, remove_from_intermediate_queue=True)

    def recover(self) -> None:
        """Takes what a broken connection left between the queue and us."""
        taking = self.queues[0].intermediate_queue.key
        entries: Any = self.connection.lrange(taking, 0, -1)
        for entry in entries:
            job_id = entry.decode(errors="replace")
            if self._desk.holds(job_id):
                continue
            try:
                job = self.job_class.fetch(job_id, connection=self.connection, serializer=self.serializer)
            # of another worker, deleted, no id, or no record that RQ can read
            except (NoPermissionError, NoSuchJobError, ValueError, TypeError) as error:
                log.error("job %s is passed over: %s", job_id[:MAX_ID], type(error).__name__)
                self.connection.lrem(taking, 1, entry)
                with suppress(NoPermissionError):
                    self.connection.delete(self.job_class.key_for(job_id))
                continue
            self.execute_job(job, self.queues[0])

    def complete(self, ticket: Ticket) -> None:
        """Finishes a shard's RQ job, which deletes it; one that is gone already is no error."""
        job = ticket.job
        job.ended_at = now()
        job.started_at = job.started_at or job.ended_at
        registry = ticket.queue.started_job_registry
        try:
            self.handle_job_success(job, ticket.queue, registry, ticket.execution)
        except (InvalidJobOperation, NoSuchJobError, ValueError):  # the job or its execution was deleted or expired
            with self.connection.pipeline() as pipeline:
                self.cleanup_execution(job, pipeline, ticket.execution)
                pipeline.delete(job.key)
                pipeline.execute()
        ticket.queue.intermediate_queue.remove(job.id)

    def keep_alive(self, tickets: Iterable[Ticket]) -> None:
        """Renews RQ's own record of what runs here, for those who look with RQ's tools."""
        for ticket in tickets:
            self.maintain_heartbeats(ticket.job, ticket.execution)

    def _refuse(self, job: Job, queue: Queue, error: DecodeError) -> None:
        """Fails a job that is no shard. Nothing of it is run, requeued or quoted."""
        log.error("job %s is refused: %s", job.id, str(error).partition(":")[0][:80])
        job.retries_left = None
        job.webhooks = []
        job.ended_at = now()
        execution = self.prepare_execution(job)
        queue.intermediate_queue.remove(job.id)
        self.handle_job_failure(job, queue, exc_string="not a shard of this version", execution=execution)

    # -- what RQ would do and we must not ---------------------------------------------------------------

    def clean_registries(self) -> None:
        """Nothing: the coordinator alone requeues."""
        self.last_cleaned_at = now()

    def clean_group_registries(self) -> None:
        """Nothing: there are no groups."""

    def subscribe(self) -> None:
        """Nothing: commands come by our own control stream."""

    def unsubscribe(self) -> None:
        """Nothing was subscribed."""

    def _install_signal_handlers(self) -> None:
        """Nothing: signals are the supervisor's."""

    def check_for_suspension(self, burst: bool) -> None:
        """Nothing: `rq suspend` is not ours."""

    def procline(self, message: str) -> None:
        """Nothing: the process keeps its own name."""


def shard_of(job: Any) -> Shard:
    """The shard that an RQ job carries; DecodeError when it carries anything else. Imports nothing."""
    try:
        name, arguments = job.func_name, job.args
    except DeserializationError as error:
        raise DecodeError("an RQ payload that is not ours") from error
    if name != keys.SHARD_FUNCTION or not isinstance(arguments, list | tuple) or len(arguments) != 1:
        raise DecodeError("an RQ job for another function")
    (data,) = arguments
    if not isinstance(data, bytes):
        raise DecodeError("an RQ job without a message")
    shard = codec.decode(data)
    if not isinstance(shard, Shard) or shard.id != job.id:
        raise DecodeError("an RQ job without its shard")
    return shard
