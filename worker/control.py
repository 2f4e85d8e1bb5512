"""Reads the worker's control stream and passes each message on."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
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

#: A message's id in the stream and its fields.
Entry = tuple[bytes, dict[bytes, bytes]]


class Control:
    """Runs on a thread of its own. A stream is read from its start: the coordinator empties it between workers."""

    def __init__(self, desk: Desk, client: redis.Redis) -> None:
        self._desk = desk
        self._client = client
        self._epoch = ""
        self._cursor = _FROM_THE_START
        # over what is obeyed and in which order
        self._lock = threading.Lock()

    def run(self) -> None:
        """Until the desk closes."""
        while not self._desk.closed:
            try:
                self.read()
            except redis.RedisError:
                self._desk.await_closed(AGAIN_S)  # the heartbeat says it in the log

    def read(self) -> None:
        """Waits for messages, up to a second, and obeys them."""
        with self._lock:
            self._follow_epoch()
        entries = self._entries(BLOCK_MS)
        with self._lock:
            self._obey(entries)

    def catch_up(self) -> None:
        """Obeys what was told before now. A row may be called off and sent anew: that is told in this order, and so it
        must be heard."""
        with self._lock:
            self._follow_epoch()
            self._obey(self._entries(None))

    def _follow_epoch(self) -> None:
        if self._desk.epoch != self._epoch:
            self._epoch, self._cursor = self._desk.epoch, _FROM_THE_START

    def _entries(self, block_ms: int | None) -> list[Entry]:
        reply: Any = self._client.xread({keys.control(self._desk.worker): self._cursor}, block=block_ms)
        return [entry for _, found in (reply.items() if isinstance(reply, dict) else reply) for entry in found]

    def _obey(self, entries: Iterable[Entry]) -> None:
        """What the other way of reading had in the meantime is left out."""
        for entry_id, fields in entries:
            if _order(entry_id.decode()) <= _order(self._cursor):
                continue
            self._cursor = entry_id.decode()
            try:
                message = codec.decode(fields.get(keys.FIELD, b""))
            except DecodeError:
                log.error("control message %s is no message", self._cursor)
                continue
            log.info("told: %s", type(message).__name__)
            self._desk.obey(message)


def _order(entry_id: str) -> tuple[int, int]:
    milliseconds, _, number = entry_id.partition("-")
    return int(milliseconds), int(number)
