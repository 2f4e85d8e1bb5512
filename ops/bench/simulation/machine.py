"""One simulated worker: agent and engine. Rows decode together by the profile's curve, join and end in flight.

Every row of a batch makes the same number of tokens a second, so `progress`, the tokens made by a row that was there
from the beginning, says when each ends.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from fleet.messages import Figures
from ops.bench.simulation.profiles import Profile

#: Slots that must be free before waiting rows join, as a share of the cap; see `worker.batching`.
COHORT_SHARE = 1 / 8
FOREVER = float("inf")


@dataclass(frozen=True, slots=True)
class Fate:
    """What happens to a machine: when it comes and goes, and its speed (a factor) from each moment on."""

    begins_s: float = 0.0
    dies_s: float = FOREVER
    #: ascending (seconds, factor); 1 before the first
    factors: tuple[tuple[float, float], ...] = ()

    def factor(self, at_s: float) -> tuple[float, float]:
        """The factor at a moment and when it changes next."""
        index = bisect_right(self.factors, at_s, key=lambda change: change[0])
        factor = self.factors[index - 1][1] if index else 1.0
        return factor, self.factors[index][0] if index < len(self.factors) else FOREVER


@dataclass(slots=True)
class Parcel:
    """A shard on its way to or in the worker's queue."""

    id: str
    arrives_s: float
    #: (row, prompt tokens to compute, tokens it will make)
    rows: list[tuple[int, int, int]] = field(default_factory=list)


class Machine:
    """Owned by the simulation's clock; `now_s` runs a little ahead when a prompt is being computed."""

    def __init__(self, id: str, profile: Profile, fate: Fate, *, load_s: float = 0.0) -> None:
        self.id = id
        self.profile = profile
        self.fate = fate
        #: when its engine is loaded
        self.ready_s = self.now_s = fate.begins_s + load_s
        self.queue: deque[Parcel] = deque()
        #: shards it has taken so far
        self.taken = 0
        #: longest prompt first, as `worker.batching` keeps them
        self._waiting: deque[tuple[int, int, int]] = deque()
        #: (progress at which it ends, row)
        self._running: list[tuple[float, int]] = []
        #: row -> (progress at which it began, tokens it will make)
        self._began: dict[int, tuple[float, int]] = {}
        self._cancelled: set[int] = set()
        self._progress = 0.0
        #: (seconds, row, tokens) of rows that ended and are not sent
        self.outbox: list[tuple[float, int, int]] = []
        #: (seconds, rows decoding) whenever a picture is wanted
        self.trace: list[tuple[float, int]] | None = None
        self._steps = self._step_rows = self._decode_s = self._prefill_s = 0.0
        self._prompt_tokens = 0
        self.wasted_tokens = 0.0

    @property
    def is_idle(self) -> bool:
        """Whether its agent has no row."""
        return not self._running and not self._waiting

    def waiting(self) -> list[int]:
        """Rows that the agent has and that do not decode yet."""
        return [row for row, *_ in self._waiting]

    def running(self) -> dict[int, int]:
        """Rows in the batch with the tokens they have made."""
        return {row: int(self._progress - began) for row, (began, _) in self._began.items()}

    def figures(self) -> Figures:
        """What a beat carries."""
        return Figures(
            output_tokens=int(self._step_rows),
            prompt_tokens=self._prompt_tokens,
            steps=int(self._steps),
            step_rows=int(self._step_rows),
            step_cap=int(self._steps * self.profile.cap),
            decode_s=self._decode_s,
            prefill_s=self._prefill_s,
        )

    def cancel(self, rows: Sequence[int]) -> None:
        """Forgets rows, wherever they are."""
        gone = set(rows)
        decoding = gone & self._began.keys()
        for row in decoding:
            self.wasted_tokens += self._progress - self._began.pop(row)[0]
        if decoding:
            self._running = [pair for pair in self._running if pair[1] not in decoding]
            heapify(self._running)
        self._waiting = deque(row for row in self._waiting if row[0] not in gone)
        for parcel in self.queue:
            parcel.rows = [row for row in parcel.rows if row[0] not in gone]

    def advance(self, until_s: float) -> None:
        """Works until a moment, or a little longer when it is at a prompt."""
        until_s = min(until_s, self.fate.dies_s)
        cap, row_tps = self.profile.cap, self.profile.row_tps
        factor, change_s = self.fate.factor(self.now_s)
        running, waiting = self._running, self._waiting
        while self.now_s < until_s:
            if self.now_s >= change_s:
                factor, change_s = self.fate.factor(self.now_s)
            while len(waiting) < cap and self.queue and self.queue[0].arrives_s <= self.now_s:
                self._take()
            batch = len(running)
            if waiting and batch < cap:
                free = cap - batch
                if not batch or free >= min(len(waiting), max(1, int(cap * COHORT_SHARE))):
                    self._admit(min(free, len(waiting)), factor)
                    continue
            if not batch:
                arrives = self.queue[0].arrives_s if self.queue else FOREVER
                self.now_s = min(max(arrives, self.now_s), until_s)
                continue
            rate = row_tps[batch] * factor
            ends_s = self.now_s + (running[0][0] - self._progress) / rate
            stop_s = min(ends_s, until_s, change_s)
            self._decode(stop_s - self.now_s, rate, batch)
            self.now_s = stop_s
            if stop_s == ends_s:
                self._end()

    def _take(self) -> None:
        rows = sorted([*self._waiting, *self.queue.popleft().rows], key=lambda row: -row[1])
        self._waiting.clear()
        self._waiting.extend(rows)
        self.taken += 1

    def _decode(self, seconds: float, rate: float, batch: int) -> None:
        tokens = rate * seconds
        self._progress += tokens
        self._steps += tokens
        self._step_rows += tokens * batch
        self._decode_s += seconds

    def _admit(self, count: int, factor: float) -> None:
        prompts = 0
        for _ in range(count):
            row, prompt, answer = self._waiting.popleft()
            prompts += prompt
            self._began[row] = (self._progress, answer)
            heappush(self._running, (self._progress + answer, row))
        took_s = prompts / (self.profile.prefill_tps * factor)
        self._prompt_tokens += prompts
        self._prefill_s += took_s
        self.now_s += took_s
        if self.trace is not None:
            self.trace.append((self.now_s, len(self._running)))

    def _end(self) -> None:
        # the row that was waited for, and others that end within a rounding error of it
        self._progress = max(self._progress, self._running[0][0])
        while self._running and self._running[0][0] <= self._progress + 1e-6:
            _, row = heappop(self._running)
            _, answer = self._began.pop(row)
            self.outbox.append((self.now_s, row, answer))
        if self.trace is not None:
            self.trace.append((self.now_s, len(self._running)))
