"""Each worker's part of the fleet's speed, and what is to be told when one falls behind or recovers. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from coordinator.scheduling.speeds import Speed


class Shares:
    """Remembers who was throttled."""

    def __init__(self) -> None:
        self._throttled: set[str] = set()

    def told(self, speeds: Mapping[str, Speed], names: Mapping[str, str]) -> Iterator[str]:
        """A sentence for each change since the last call; both by worker id."""
        for worker, speed in speeds.items():
            was = worker in self._throttled
            if speed.throttled and not was:
                self._throttled.add(worker)
                usual, now = _share(worker, speeds, usual=True), _share(worker, speeds, usual=False)
                yield f"{names[worker]} throttled: share {100 * usual:.0f} -> {100 * now:.0f} %"
            elif was and not speed.throttled:
                self._throttled.discard(worker)
                yield f"{names[worker]} is as fast as usual again"
        self._throttled &= speeds.keys()


def _share(worker: str, speeds: Mapping[str, Speed], *, usual: bool) -> float:
    """A worker's part of what all decode together; `usual`: were it as fast as it usually is."""
    rates = {name: speed.decode_tps for name, speed in speeds.items()}
    if usual:
        rates[worker] /= speeds[worker].pace
    return rates[worker] / sum(rates.values())
