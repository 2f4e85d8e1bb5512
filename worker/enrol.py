"""Asking the coordinator to be let in, and what comes back."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import redis

from fleet import codec, keys
from fleet.credentials import Credentials
from fleet.errors import AuthError, NoCoordinatorError
from fleet.messages import Host
from fleet.token import WHERE, Token
from worker.finding import Met
from worker.identity import Identity
from worker.road import Road

#: How long the coordinator may take to answer a request to join, seconds; it looks many times a second.
REPLY_S = 15.0
_POLL_S = 0.05
#: Requests kept for a coordinator that does not look, at most.
_MAX_REQUESTS = 1000
#: The user of all who hold a token and nothing else.
_JOIN_USER = "join"


@dataclass(frozen=True, slots=True, kw_only=True)
class Applicant:
    """This Mac, as it asks."""

    identity: Identity
    host: Host


class _StrangerError(Exception):
    """Raised when the broker does not know a user or its password."""


def enrol(met: Met, token: Token, applicant: Applicant, kept: Credentials | None) -> Credentials:
    """Asks to be let in, as the user this Mac had before where it can, else with the token's secret.

    AuthError says why it is refused, NoCoordinatorError that nobody looks at who asks.
    """
    if kept is not None and kept.user and kept.parsed.fingerprint == token.fingerprint:
        try:
            return _ask(met, token, applicant, kept.user, kept.password)
        except _StrangerError:
            pass  # removed, or forgotten: the token decides
    try:
        return _ask(met, token, applicant, _JOIN_USER, token.secret)
    except _StrangerError as error:
        raise AuthError(
            f"the coordinator does not accept this token any more: `fleet join TOKEN` with the present one; {WHERE}"
        ) from error


def _ask(met: Met, token: Token, applicant: Applicant, user: str, password: str) -> Credentials:
    client = Road(met.certificate, met.addresses).client(user, password)
    try:
        reply = _answer(client, _request(applicant))
    finally:
        client.close()
    if "refused" in reply:
        raise AuthError(f"the coordinator does not let this Mac in: {reply['refused']}")
    return Credentials(
        token=token.format(),
        certificate=met.certificate,
        addresses=tuple(map(str, met.addresses)),
        api_port=int(reply["api_port"]),
        coordinator=str(reply["coordinator"]),
        name=str(reply["name"]),
        user=str(reply["user"]),
        password=str(reply["password"]),
    )


def _request(applicant: Applicant) -> dict[str, Any]:
    host = applicant.host
    return {
        "id": secrets.token_hex(16),
        "uuid": applicant.identity.uuid,
        "name": host.name,
        "chip": host.chip,
        "memory_bytes": host.memory_bytes,
        "version": host.version,
        "wire": codec.VERSION,
    }


def _answer(
    client: redis.Redis, request: dict[str, Any], clock: Callable[[], float] = time.monotonic
) -> dict[str, Any]:
    """The coordinator's; the request is put once to each broker, should one be replaced meanwhile."""
    deadline = clock() + REPLY_S
    posted: Any = None
    trouble = "it gave no answer"
    while clock() < deadline:
        try:
            epoch = client.get(keys.EPOCH)
            if epoch != posted:
                client.xadd(keys.JOIN, {keys.FIELD: json.dumps(request)}, maxlen=_MAX_REQUESTS, approximate=True)
                posted = epoch
            reply: Any = client.get(keys.reply(request["id"]))
            if reply is not None:
                return dict(json.loads(reply))
        except redis.AuthenticationError as error:
            raise _StrangerError from error
        except redis.RedisError as error:
            trouble = f"its broker is away ({type(error).__name__})"
        time.sleep(_POLL_S)
    raise NoCoordinatorError(
        f"the coordinator is there, but {trouble} in {REPLY_S:.0f} s: is `fleet up` in order there?"
    )
