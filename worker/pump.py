"""Carries reports from the outbox into the results stream, and ends the RQ jobs of shards that are wholly there."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

import redis

from fleet import codec, keys
from fleet.config import FLUSH_S
from worker.agent import Agent, Tickets
from worker.client import AGAIN_S
from worker.desk import Desk

log = logging.getLogger(__name__)

#: While the coordinator has not taken everything, look this often whether it has, seconds.
TAKEN_S = 0.5
#: RQ's own records of running jobs expire after 90 s; renewed this often, seconds.
KEEP_ALIVE_S = 30.0


class Pump:
    """Runs on a thread of its own; `agent` is whatever RQ worker is there, None between two."""

    def __init__(self, desk: Desk, tickets: Tickets, client: redis.Redis, agent: Callable[[], Agent | None]) -> None:
        self._desk = desk
        self._tickets = tickets
        self._client = client
        self._agent = agent
        self._renewed_s = time.monotonic()

    def run(self) -> None:
        """Until the desk closes."""
        while not self._desk.closed:
            self._desk.await_mail(TAKEN_S if self._desk.untaken else FLUSH_S)
            try:
                if not self.turn():
                    self._desk.await_closed(AGAIN_S)
            except redis.RedisError as error:
                log.debug("pump: %s", type(error).__name__)  # the heartbeat says it in the log
                self._desk.await_closed(AGAIN_S)

    def turn(self) -> bool:
        """Sends what is unsent, ends what is finished, sees what was taken; False while the broker has no epoch."""
        if not self._desk.epoch:
            return False
        stream = keys.results(self._desk.worker)
        while (letter := self._desk.draft()) is not None:
            epoch, entry_id = self._in_one("XADD", stream, "*", keys.FIELD, codec.encode(letter))
            if epoch is None:
                return False
            self._desk.sent(letter, epoch.decode(), entry_id.decode())
        self._finish()
        epoch, oldest = self._in_one("XRANGE", stream, "-", "+", "COUNT", 1)
        if epoch is None:
            return False
        self._desk.taken(epoch.decode(), oldest[0][0].decode() if oldest else None)
        return True

    def _finish(self) -> None:
        agent = self._agent()
        if agent is None:
            return
        tickets = self._tickets.all()
        for shard_id in self._desk.finished():
            if shard_id in tickets:
                agent.complete(tickets[shard_id])
                self._tickets.take(shard_id)
        if time.monotonic() - self._renewed_s > KEEP_ALIVE_S:
            self._renewed_s = time.monotonic()
            agent.keep_alive(self._tickets.all().values())

    def _in_one(self, *command: Any) -> Any:
        """The broker's epoch and the command's reply, as of one moment."""
        with self._client.pipeline() as pipe:
            pipe.get(keys.EPOCH)
            pipe.execute_command(*command)  # type: ignore[no-untyped-call]
            return pipe.execute()
