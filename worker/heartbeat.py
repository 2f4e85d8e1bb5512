"""The lease: says every few seconds what this worker holds, sees whether the broker is still the same one."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Protocol

import redis

from fleet import codec, keys
from fleet.config import BEAT_S, LEASE_TTL_S
from fleet.messages import Beat
from worker.agent import Tickets
from worker.client import AGAIN_S
from worker.desk import Desk

log = logging.getLogger(__name__)

#: Between two beats there is at least this, however much changes, seconds.
GAP_S = 0.5
#: How long the last beat stays, seconds: the coordinator looks every second.
GOODBYE_S = 2.5


class Listener(Protocol):
    """Hears how it goes, for people; its calls must be quick."""

    def told(self, beat: Beat) -> None:
        """The broker has this beat."""

    def away(self) -> None:
        """The broker cannot be reached; said once, until the next beat."""


class Heartbeat:
    """Renews the lease from a thread of its own, and from the agent's when a shard is taken."""

    def __init__(
        self,
        desk: Desk,
        tickets: Tickets,
        client: redis.Redis,
        refused: Callable[[], object] = int,
        listener: Listener | None = None,
    ) -> None:
        """`refused` is called when the broker does not know this worker's user, or speaks another version: the end."""
        self._desk = desk
        self._tickets = tickets
        self._client = client
        self._refused = refused
        self._listener = listener
        self._one_at_a_time = threading.Lock()
        self._closed = threading.Event()

    def run(self) -> None:
        """Until `close`; a broker that is away is asked again soon."""
        away = False
        while not self._closed.is_set():
            try:
                alive = self.beat()
                away = False
            except redis.AuthenticationError:
                self._refused()
                return
            except redis.RedisError as error:
                if not away:
                    log.warning("no beat: %s", type(error).__name__)
                    if self._listener is not None:
                        self._listener.away()
                alive, away = False, True
            self._closed.wait(GAP_S if alive else AGAIN_S)
            if alive:
                self._desk.await_news(BEAT_S - GAP_S)

    def beat(self) -> bool:
        """Renews the lease; False while the broker has no epoch, which its coordinator gives it."""
        with self._one_at_a_time:
            epoch = self._client.get(keys.EPOCH)
            if epoch is None:
                return False
            name = epoch.decode() if isinstance(epoch, bytes) else epoch
            if not codec.is_understood(name):
                self._refused()
                return False
            if self._desk.met(name):
                log.info("broker of epoch %s", name)
                self._tickets.forget_all()
            for shard_id in self._tickets.missing(self._client, name):
                log.warning("shard %s was taken away", shard_id)
                self._tickets.take(shard_id)
                self._desk.drop(shard_id)
            beat = self._desk.beat()
            self._client.set(keys.lease(self._desk.worker), codec.encode(beat), px=int(LEASE_TTL_S * 1000))
            if self._listener is not None:
                self._listener.told(beat)
        return True

    def close(self) -> None:
        """Ends the loop. The last beat stays just long enough to be read: who left is told from who was lost."""
        self._closed.set()
        with self._one_at_a_time:
            try:
                self._client.set(
                    keys.lease(self._desk.worker), codec.encode(self._desk.beat()), px=int(GOODBYE_S * 1000)
                )
            except redis.RedisError:
                return  # the one before expires by itself
