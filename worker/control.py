"""Reads the worker's control stream and passes each message on."""

from __future__ import annotations

import logging
from typing import Any

import redis

from fleet import codec, keys
from fleet.errors import DecodeError
from worker.client import AGAIN_S
from worker.desk import Desk

log = logging.getLogger(__name__)

#: How long one read waits for a message, milliseconds.
BLOCK_MS = 1000
_FROM_THE_START = "0-0"


class Control:
    """Runs on a thread of its own. A stream is read from its start: the coordinator empties it between workers."""

    def __init__(self, desk: Desk, client: redis.Redis) -> None:
        self._desk = desk
        self._client = client
        self._epoch = ""
        self._cursor = _FROM_THE_START

    def run(self) -> None:
        """Until the desk closes."""
        while not self._desk.closed:
            try:
                self.read()
            except redis.RedisError:
                self._desk.await_closed(AGAIN_S)  # the heartbeat says it in the log

    def read(self) -> None:
        """Waits for messages, up to a second, and obeys them."""
        if self._desk.epoch != self._epoch:
            self._epoch, self._cursor = self._desk.epoch, _FROM_THE_START
        stream = keys.control(self._desk.worker)
        reply: Any = self._client.xread({stream: self._cursor}, block=BLOCK_MS)
        entries = [entry for _, found in (reply.items() if isinstance(reply, dict) else reply) for entry in found]
        for entry_id, fields in entries:
            self._cursor = entry_id.decode()
            try:
                message = codec.decode(fields.get(keys.FIELD, b""))
            except DecodeError:
                log.error("control message %s is no message", self._cursor)
                continue
            log.info("told: %s", type(message).__name__)
            self._desk.obey(message)
