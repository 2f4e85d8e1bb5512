"""A dispatch that only notes what it is told, and shows what a test says."""

from __future__ import annotations

from collections.abc import Sequence

from coordinator.broker.dispatch import Lease, Sight
from fleet.config import LEASE_TTL_S
from fleet.errors import BrokerError
from fleet.messages import Beat, Message, Shard, WorkerState

UNSEEN = Sight(queued=frozenset(), lease=None)


class Post:
    """Takes shards and gives no answer but the messages put in `told`, again and again."""

    def __init__(self) -> None:
        self.shards: list[Shard] = []
        self.told: list[Message] = []
        self.broken = False
        #: everything in the broker is gone
        self.emptied = False
        #: shards that no agent has taken
        self.in_queue: set[str] = set()
        self.taken_back: list[tuple[str, str]] = []
        #: control messages
        self.orders: list[tuple[str, Message]] = []
        self.purged: list[str] = []
        #: what the broker shows of a worker
        self.seen: dict[str, Sight] = {}

    def send(self, _worker: str, shard: Shard, *, ahead: bool = False) -> None:
        del ahead
        if self.broken:
            raise BrokerError("the broker does not answer")
        self.shards.append(shard)

    def heard(self, workers: Sequence[str], _count: int) -> dict[str, list[tuple[str, Message]]]:
        return {workers[0]: [(f"{n}-0", message) for n, message in enumerate(self.told)]} if self.told else {}

    def queued(self, _worker: str) -> set[str]:
        return set()

    def take_back(self, worker: str, shard: str) -> bool:
        self.taken_back.append((worker, shard))
        return shard in self.in_queue

    def control(self, worker: str, message: Message) -> None:
        if self.broken:
            raise BrokerError("the broker does not answer")
        self.orders.append((worker, message))

    def purge(self, worker: str) -> None:
        self.purged.append(worker)

    def epoch(self) -> str | None:
        if self.broken:
            raise BrokerError("the broker does not answer")
        return None if self.emptied else "e"

    def sights(self, workers: Sequence[str]) -> dict[str, Sight]:
        if self.broken:
            raise BrokerError("the broker does not answer")
        return {worker: self.seen.get(worker, UNSEEN) for worker in workers}

    def delete(self, _worker: str, _entries: Sequence[str]) -> None:
        """Deletes nothing, like a broker that lost the call."""


def beat(worker: str = "w", *, nonce: str = "n1", state: WorkerState = WorkerState.WORKING, **more: object) -> Beat:
    """A beat of a worker that holds nothing unless `more` says so."""
    told: dict[str, object] = {"epoch": "e", "shards": (), "running": (), "waiting": 0, "engine": None, **more}
    return Beat(worker=worker, nonce=nonce, state=state, **told)  # type: ignore[arg-type]


def sight(said: Beat, *, age_s: float = 0.0, queued: Sequence[str] = ()) -> Sight:
    """What the broker shows of a worker that said this so long ago."""
    lease = Lease(beat=said, ttl_ms=int((LEASE_TTL_S - age_s) * 1000))
    return Sight(queued=frozenset(queued), lease=lease)
