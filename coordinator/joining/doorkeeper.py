"""Answers those who ask to join: a user of their own, or a sentence that says why not."""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import redis

from coordinator.joining.accounts import Account, hashed
from coordinator.joining.users import Users
from fleet import __version__, codec, keys
from fleet.errors import BrokerError
from fleet.messages import Host

log = logging.getLogger(__name__)

#: How often the broker is asked what it refused, seconds.
LOOK_S = 5.0
#: Requests read at once, and the bytes of one.
MAX_REQUESTS = 100
MAX_BYTES = 4096
#: An answer is kept this long, seconds; whoever asked waits for it far less.
REPLY_S = 60
#: Characters of a name, and of other words of a request.
MAX_NAME, MAX_WORD = 63, 120
#: An entry's id begins with milliseconds: none of a clock is so late.
_NO_TIME = 1 << 62
_HEX_32 = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """A worker that was let in just now, for the first time or again."""

    wid: str
    #: its name in this fleet, which no other worker has
    name: str
    host: Host


class _RefusedError(Exception):
    """Carries the sentence for whoever asked."""


class Doorkeeper:
    """Reads the stream of requests, a few times a second, in the coordinator's main thread."""

    def __init__(
        self,
        client: redis.Redis,
        users: Users,
        *,
        coordinator: str,
        api_port: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._clock = clock
        self._looked_s = clock()
        self._users = users
        self._coordinator = coordinator
        self._api_port = api_port

    def poll(self) -> list[Joined]:
        """Answers all who wait; those let in. BrokerError when the broker does not answer."""
        try:
            entries: Any = self._client.xrange(keys.JOIN, count=MAX_REQUESTS)
            joined = [self._answer(fields.get(keys.FIELD, b"")) for _, fields in entries]
            if entries:
                self._client.xdel(keys.JOIN, *(entry for entry, _ in entries))
            if self._clock() - self._looked_s > LOOK_S:
                self._looked_s = self._clock()
                self._note_refusals()
                self._renew_stream()
        except redis.RedisError as error:
            raise BrokerError(f"the broker does not answer ({type(error).__name__})") from error
        return [one for one in joined if one is not None]

    def _note_refusals(self) -> None:
        """Moves what the broker refused its users into our log."""
        for entry in self._client.acl_log():
            user, what = _printable(entry["username"]), _printable(entry["object"])
            log.warning("user %s was refused: %s %s, %s times", user, entry["reason"], what, entry["count"])
        self._client.acl_log_reset()

    def _renew_stream(self) -> None:
        """An entry may be given any id, and after the last one nobody could ask any more."""
        try:
            last = self._client.xinfo_stream(keys.JOIN)["last-generated-id"]
        except redis.ResponseError:  # nobody has asked yet
            return
        if int(last.partition(b"-")[0]) >= _NO_TIME:
            log.warning("somebody used up the ids of the requests to join: their stream is made anew")
            self._client.delete(keys.JOIN)

    def _answer(self, data: bytes) -> Joined | None:
        request = _understood(data)
        if request is None:
            log.warning("a request to join is passed over: it cannot be understood")
            return None
        try:
            joined, reply = self._admit(request)
        except _RefusedError as refusal:
            log.warning("%s may not join: %s", _word(request, "name"), refusal)
            joined, reply = None, {"refused": str(refusal)}
        self._client.set(keys.reply(request["id"]), json.dumps(reply), ex=REPLY_S)
        return joined

    def _admit(self, request: Mapping[str, Any]) -> tuple[Joined, dict[str, Any]]:
        _check_version(request)
        wid, proof = request["uuid"][:12], request["uuid"]
        known = self._users.accounts.get(wid)
        if known is not None and known.proof != hashed(proof):
            raise _RefusedError(
                "another Mac of this fleet has the same id: remove `identity.json` from its state folder"
            )
        if known is not None and known.kicked:
            raise _RefusedError(
                "this Mac was removed from the fleet (`fleet kick`): `fleet token --rotate` on the coordinator "
                "makes a new token, and `fleet join TOKEN` with that lets it in again"
            )
        name = free_name(_word(request, "name") or wid, wid, self._users.workers)
        password = self._users.admit(self._client, wid, name, proof)
        host = Host(
            name=name,
            chip=_word(request, "chip"),
            memory_bytes=_count(request.get("memory_bytes")),
            version=_word(request, "version"),
        )
        reply = {
            "user": wid,
            "password": password,
            "name": name,
            "coordinator": self._coordinator,
            "api_port": self._api_port,
        }
        return Joined(wid=wid, name=name, host=host), reply


def free_name(wanted: str, wid: str, accounts: Mapping[str, Account]) -> str:
    """`wanted`, or with a number behind it when another worker than `wid` has it."""
    taken = {account.name.casefold() for other, account in accounts.items() if other != wid}
    number, name = 1, wanted
    while name.casefold() in taken:
        number += 1
        name = f"{wanted}-{number}"
    return name


def _understood(data: bytes) -> dict[str, Any] | None:
    """The request in `data`, None when it is none: nobody can be told then."""
    try:
        request = json.loads(data) if len(data) <= MAX_BYTES else None
    except (ValueError, RecursionError):
        return None
    if not isinstance(request, dict):
        return None
    good = all(isinstance(request.get(name), str) and _HEX_32.fullmatch(request[name]) for name in ("id", "uuid"))
    return request if good else None


def _check_version(request: Mapping[str, Any]) -> None:
    theirs = _word(request, "version")
    if request.get("wire") != codec.VERSION or _minor(theirs) != _minor(__version__):
        raise _RefusedError(
            f"this Mac has mlx-fleet {theirs or 'of an unknown version'} and the coordinator {__version__}: "
            "install the same version on both"
        )


def _minor(version: str) -> list[str]:
    return version.split(".")[:2]


def _word(request: Mapping[str, Any], field: str) -> str:
    """A field as one short printable word or line."""
    value = request.get(field)
    limit = MAX_NAME if field == "name" else MAX_WORD
    return _printable(value)[:limit].strip() if isinstance(value, str) else ""


def _printable(value: object) -> str:
    """Text of a stranger as a log may hold it."""
    return "".join(c for c in str(value) if c.isprintable()).strip()[:MAX_WORD]


def _count(value: object) -> int:
    return value if type(value) is int and 0 <= value < 1 << 63 else 0
