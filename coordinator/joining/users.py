"""Who may do what at the broker: ACL rules, and the users made from the accounts.

`default` is off. `join` may post a request to join and read the answer whose name it knows. Each worker has a user of
its own, named by its id, with its own keys and, for each, the commands that RQ and we use on it. No user may run
scripts, publish, list keys or configure. The coordinator, and those who can read its state folder, may do all.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager

import redis

from coordinator.joining.accounts import Account, Accounts, hashed
from fleet import keys
from fleet.errors import BrokerError

JOIN = "join"
COORDINATOR = "coordinator"
#: A worker's id: the first 12 hex digits of a UUID. Nothing else ever becomes part of a rule.
_WID = re.compile(r"[0-9a-f]{12}")

#: What every client of ours says on a connection, and around a transaction.
_CONNECTION = "+auth +hello +ping +client|setinfo +client|setname +client|info +select +multi +exec +discard +unwatch"
#: What RQ asks of the server when a worker begins.
_RQ_SERVER = "+info"


class Users:
    """The broker's users, kept equal to the accounts. Owned by the coordinator's main thread."""

    def __init__(self, accounts: Accounts) -> None:
        self.accounts = accounts
        self._password = secrets.token_hex(16)
        #: workers of this machine, which end with the coordinator
        self._own: dict[str, Account] = {}

    @property
    def login(self) -> str:
        """`user:password` of the coordinator, new with each start of it."""
        return f"{COORDINATOR}:{self._password}"

    def rules(self) -> list[str]:
        """Every user as the broker's configuration wants it, so that none is missing when it opens its door."""
        return [
            "default off resetkeys resetchannels -@all",
            f"{COORDINATOR} on #{hashed(self._password)} ~* &* +@all",
            f"{JOIN} {join_rule(self.accounts.secrets.secret)}",
            *(f"{wid} {worker_rule(wid, account.password)}" for wid, account in self.workers.items()),
        ]

    @property
    def workers(self) -> dict[str, Account]:
        """All that may work here, by id."""
        return {**self.accounts.workers, **self._own}

    def admit(self, client: redis.Redis, wid: str, name: str, proof: str) -> str:
        """Lets `wid` in; its password. `proof` is what only that Mac knows."""
        password = self.accounts.admit(wid, name, proof)
        _set(client, wid, worker_rule(wid, hashed(password)))
        return password

    def admit_own(self, client: redis.Redis, wid: str, name: str) -> str:
        """Lets a worker of this machine in until the coordinator ends; its `user:password`."""
        password = secrets.token_hex(16)
        self._own[wid] = Account(wid=wid, name=name, password=hashed(password), proof="")
        _set(client, wid, worker_rule(wid, hashed(password)))
        return f"{wid}:{password}"

    def remove(self, client: redis.Redis, wid: str) -> None:
        """`wid` can neither read nor write any more: its connections are cut, and it may not come back."""
        self.accounts.kick(wid)
        with _translated():
            client.acl_deluser(wid)

    def rotate(self, client: redis.Redis) -> None:
        """New secrets for the token: the old ones open nothing from now on."""
        self.accounts.rotate()
        _set(client, JOIN, join_rule(self.accounts.secrets.secret))


def join_rule(secret: str) -> str:
    """What the holder of the token may do before it has a user of its own."""
    return f"reset on #{hashed(secret)} {_CONNECTION} {_asking()}"


def worker_rule(wid: str, password_hash: str) -> str:
    """What the worker `wid` may do."""
    if not _WID.fullmatch(wid):
        raise ValueError(f"{wid!r} is no worker's id")
    return " ".join([f"reset on #{password_hash} {_CONNECTION} {_RQ_SERVER} {_asking()}", *_selectors(wid)])


def _asking() -> str:
    """Asking to join, which a worker does each time it starts."""
    return f"(%R~{keys.EPOCH} +get) (%W~{keys.JOIN} +xadd) (%R~{keys.REPLY}* +get)"


def _selectors(wid: str) -> Iterator[str]:
    """Keys with the commands on them. A key that the coordinator reads must keep its type, whatever its worker does."""
    queue = f"rq:queue:{keys.queue(wid)}"
    yield f"(%W~{keys.lease(wid)} +set +del)"
    yield f"(~{keys.results(wid)} +xadd +xrange)"
    yield f"(%R~{keys.control(wid)} +xread)"
    yield f"(~{queue} ~{queue}:intermediate +lmove +blmove +lrem +lrange)"
    yield f"(~rq:job:{wid}-* ~rq:job::{wid}-* ~rq:results:{wid}-* {_RQ_HASH} +del +watch +smembers)"
    yield f"(~rq:results:{wid}-* +xadd +expire)"
    yield f"(~rq:execution:{wid}-* ~rq:executions:{wid}-* {_RQ_HASH} {_RQ_SORTED} +zrange +zremrangebyscore +del)"
    yield f"({' '.join(f'~rq:{kind}:{wid}' for kind in _REGISTRIES)} {_RQ_SORTED} +expire)"
    yield f"(~rq:worker:{wid}.* {_RQ_HASH} +hincrby +hincrbyfloat +sadd +srem +del)"
    yield f"(%W~rq:workers:{wid} +sadd +srem)"
    yield "(%W~rq:workers +sadd +srem)"


_RQ_HASH = "+hset +hget +hgetall +hexists +exists +expire +persist"
_RQ_SORTED = "+zadd +zrem"
#: RQ's registries of a queue, by state.
_REGISTRIES = ("wip", "finished", "failed", "deferred", "scheduled", "canceled", "ready")


def _set(client: redis.Redis, user: str, rule: str) -> None:
    with _translated():
        client.execute_command("ACL SETUSER", user, *_words(rule))  # type: ignore[no-untyped-call]


def _words(rule: str) -> list[str]:
    """A rule's words; a selector in parentheses is one."""
    return re.findall(r"\([^)]*\)|\S+", rule)


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except redis.RedisError as error:
        raise BrokerError(f"the broker does not change its users ({type(error).__name__})") from error
