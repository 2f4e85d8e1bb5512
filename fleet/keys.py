"""Our names in Redis. RQ's own keys keep RQ's default prefix; the broker is ours alone.

EPOCH             string   `<wire version>-<random>`, set by the coordinator when the broker starts; another value
                           means it was wiped
lease(wid)        string   an encoded Beat, with a TTL of config.LEASE_TTL_S set by the server
results(wid)      stream   field "m": an encoded Finished, Crashed or Returned; deleted once the ledger has it
control(wid)      stream   field "m": an encoded Cancel, SetCap or Stop, bounded
queue(wid)        RQ queue of shards, one per worker: RQ's dequeue is crash-safe only then
JOIN              stream   field "m": a worker's request to join, JSON, so that any version can read it
reply(request)    string   the answer to it, JSON, with a TTL; its name cannot be guessed
"""

from __future__ import annotations

EPOCH = "fleet:epoch"
JOIN = "fleet:join"
#: Replies begin with this.
REPLY = "fleet:reply:"
#: The one field of every stream entry.
FIELD = b"m"
#: The function every shard names; an agent compares it and never imports it.
SHARD_FUNCTION = "worker.agent.run_shard"


def lease(worker: str) -> str:
    """Key of a worker's lease."""
    return f"fleet:lease:{worker}"


def results(worker: str) -> str:
    """Key of the stream a worker writes."""
    return f"fleet:results:{worker}"


def control(worker: str) -> str:
    """Key of the stream a worker obeys."""
    return f"fleet:control:{worker}"


def reply(request: str) -> str:
    """Key of the answer to a join request."""
    return f"{REPLY}{request}"


def queue(worker: str) -> str:
    """Name (not key) of a worker's RQ queue."""
    return worker


def shard(worker: str, number: int) -> str:
    """Id of the `number`-th shard cut for a worker, also its RQ job id."""
    return f"{worker}-{number}"
