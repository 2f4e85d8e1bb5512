"""The worker's Redis client: it fails at once, because every loop here has its own way of trying again."""

from __future__ import annotations

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

#: Longest wait for one reply, seconds; longer than any blocking read of ours.
REPLY_S = 5.0
#: Pause after the broker did not answer, seconds.
AGAIN_S = 0.3


def connect(url: str) -> redis.Redis:
    """A client of the broker at `url`; connects when first used."""
    client: redis.Redis = redis.Redis.from_url(url, socket_timeout=REPLY_S, retry=Retry(NoBackoff(), 0))
    return client
