"""Policies to compare with: chunks by a simple rule, from a list of rows in order, longest prompt first."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from fleet.messages import Figures
from ops.bench.simulation.machine import Machine
from ops.bench.simulation.profiles import Profile
from ops.bench.simulation.run import Simulation

#: (rows left, workers, this worker's part of the fleet's speed) -> rows of the next shard
Chunk = Callable[[int, int, float], int]
FIXED = 64


class Chunks:
    """A worker that runs low gets the next chunk; rows of a lost worker go back to the front."""

    def __init__(self, chunk: Chunk, *, low: float = 1.0) -> None:
        """A worker runs low when it has at most `low` caps of rows left; 0 is a barrier at each shard's end."""
        self._chunk = chunk
        self._low = low
        self._profiles: dict[str, Profile] = {}
        self._held: dict[str, set[int]] = {}
        self._pool: deque[int] = deque()
        self._shards = 0

    def begin(self, simulation: Simulation) -> None:
        self._simulation = simulation
        prompts = simulation.workload.prompts
        self._pool.extend((-prompts).argsort(kind="stable").tolist())

    def joined(self, worker: str, profile: Profile) -> None:
        self._profiles[worker] = profile
        self._held[worker] = set()

    def ended(self, worker: str, rows: Sequence[tuple[int, int]], now_s: float) -> None:
        del now_s
        self._held[worker].difference_update(row for row, _ in rows)

    def beat(self, worker: str, machine: Machine, figures: Figures, now_s: float) -> None:
        """Beats are not listened to."""

    def lost(self, worker: str) -> None:
        self._pool.extendleft(self._held.pop(worker))
        del self._profiles[worker]

    def turn(self, now_s: float) -> None:
        del now_s
        speed = sum(profile.decode_tps for profile in self._profiles.values())
        left, workers = len(self._pool), len(self._held)
        for worker, held in self._held.items():
            profile = self._profiles[worker]
            if not self._pool or len(held) > self._low * profile.cap:
                continue
            count = max(1, self._chunk(left, workers, profile.decode_tps / speed))
            rows = [self._pool.popleft() for _ in range(min(count, len(self._pool)))]
            held.update(rows)
            self._shards += 1
            self._simulation.send(worker, f"{worker}-{self._shards}", rows)


def _whole(share: Callable[[int, int, float], float]) -> Chunk:
    return lambda left, workers, part: round(share(left, workers, part) + 0.5)


#: By name. All know the calibrated speeds, which ours does not.
BASELINES: dict[str, Callable[[], Chunks]] = {
    "equal split": lambda: Chunks(_whole(lambda left, workers, _: left / workers)),
    "static by speed": lambda: Chunks(_whole(lambda left, _, part: left * part)),
    "fixed shards of 64": lambda: Chunks(lambda *_: FIXED),
    "fixed shards with a barrier": lambda: Chunks(lambda *_: FIXED, low=0.0),
    "guided self-scheduling": lambda: Chunks(_whole(lambda left, workers, _: left / (2 * workers))),
}
