"""How many rows decode together, by the length that is decoding: what was measured, what is worth measuring. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from worker.knee import MOST_ROWS, Curve, Prefill, PrefillSample, Sample, next_rows, next_setting
from worker.pace import Pace

#: A bucket is measured once so many of its rows wait, or ...
WORTH_ROWS = 200
#: ... the engine has worked on it this long, seconds; and goes on where it stopped after as long again.
WORTH_S = 60.0
#: Of the cap: batches this full are steady, and compared with the curve.
STEADY_SHARE = 0.9
#: Steady steps are compared in windows of this much decoding, seconds.
WINDOW_S = 5.0
#: A correction this large is worth a write to the disk.
SAVE_SHARE = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What the machine allows."""

    #: prefill setting to begin with
    start: Prefill
    #: no more prompts together, and no more tokens an evaluation, than this
    most: Prefill
    #: tokens of KV that all rows together may have when nothing else is there
    total_tokens: int


@dataclass(slots=True, kw_only=True)
class _Bucket:
    """One length bucket at work."""

    pace: Pace
    #: seconds of work on its rows
    worked_s: float = 0.0
    #: times it was measured in this engine
    turns: int = 0
    #: rows, steps and seconds of the steady window under way
    rows: int = 0
    steps: int = 0
    seconds: float = 0.0


@dataclass(slots=True, kw_only=True)
class Caps:
    """Owned by the engine's loop."""

    bounds: Bounds
    #: rows together in a bucket that is not measured
    provisional: int
    #: a cap that a person gave, or 1 for a model that cannot batch: nothing is measured; 0 for none
    fixed: int = 0
    #: what others allow at most, 0 for no limit
    asked: int = 0
    #: by bucket
    curves: dict[int, Curve] = field(default_factory=dict)
    #: rows that fitted no more, by bucket: a limit for that bucket and all longer ones
    shortages: dict[int, int] = field(default_factory=dict)
    #: buckets whose curve is not as it is stored
    unsaved: set[int] = field(default_factory=set)
    _buckets: dict[int, _Bucket] = field(default_factory=dict)

    # -- what is in force --------------------------------------------------------------------------

    def own(self, bucket: int) -> int:
        """Rows together in `bucket` by our own choice."""
        limits = [rows for shorter, rows in self.shortages.items() if shorter <= bucket]
        return max(1, min([self._chosen(bucket), *limits]))

    def in_force(self, bucket: int) -> int:
        """The same, and no more than asked for."""
        return min(self.own(bucket), self.asked or MOST_ROWS * MOST_ROWS)

    def prefill(self, bucket: int) -> Prefill:
        """How prompts of `bucket` are computed."""
        curve = self.curves.get(bucket)
        return (curve.setting if curve else None) or self.bounds.start

    def _chosen(self, bucket: int) -> int:
        if self.fixed:
            return self.fixed
        curve = self.curves.get(bucket)
        if curve is None or curve.knee is None:
            return self.provisional
        return curve.knee.rows if curve.ended else max(curve.knee.rows, self.provisional)

    # -- measuring ---------------------------------------------------------------------------------

    def due(self, bucket: int, waiting: int) -> bool:
        """Whether measuring `bucket`, of which so many rows wait, is worth its time now."""
        curve = self._curve(bucket)
        if self.fixed or (curve.ended and curve.prefill_ended) or 2 * waiting < self.in_force(bucket):
            return False  # the last rows of a backlog gain nothing
        state = self._bucket(bucket)
        return (not state.turns and waiting >= WORTH_ROWS) or state.worked_s >= WORTH_S * (state.turns + 1)

    def begin(self, bucket: int) -> None:
        """A turn of measuring begins."""
        self._bucket(bucket).turns += 1

    def next_rows(self, bucket: int, free_rows: int) -> int | None:
        """The batch to sample next with memory for `free_rows` made-up rows; None for none now."""
        curve = self._curve(bucket)
        return None if curve.ended else next_rows(curve.samples, most_rows=free_rows)

    def next_setting(self, bucket: int) -> Prefill | None:
        """The prefill setting to sample next, after the decode curve; None for none now."""
        curve = self._curve(bucket)
        if not curve.ended or curve.prefill_ended:
            return None
        return next_setting(curve.prefill, start=self.bounds.start, most=self.bounds.most)

    def sampled(self, bucket: int, sample: Sample) -> None:
        """Takes a sample of `next_rows`."""
        curve = self._curve(bucket)
        samples = (*curve.samples, sample)
        ended = next_rows(samples, most_rows=max(1, self.bounds.total_tokens // bucket)) is None
        self._keep(replace(curve, samples=samples, ended=ended))

    def sampled_prefill(self, bucket: int, sample: PrefillSample) -> None:
        """Takes a sample of `next_setting`."""
        curve = self._curve(bucket)
        taken = (*curve.prefill, sample)
        ended = next_setting(taken, start=self.bounds.start, most=self.bounds.most) is None
        self._keep(replace(curve, prefill=taken, prefill_ended=ended))

    def ran_out(self, bucket: int) -> None:
        """A sample of `bucket` met the end of memory: the sweep is over."""
        curve = self._curve(bucket)
        self._keep(replace(curve, ended=True, prefill_ended=curve.prefill_ended or curve.ended))

    # -- running -----------------------------------------------------------------------------------

    def halve(self, bucket: int, rows: int) -> None:
        """A real batch of `rows` met the end of memory."""
        self.shortages[bucket] = max(1, min(rows, self.own(bucket)) // 2)

    def prefilled(self, bucket: int, seconds: float) -> None:
        """Prompts of `bucket` took this long."""
        self._bucket(bucket).worked_s += seconds

    def stepped(self, bucket: int, rows: int, seconds: float, *, measurable: bool = True) -> None:
        """A decode step of `rows` took this long; it is no measure of the curve unless it read what a sample reads."""
        state = self._bucket(bucket)
        state.worked_s += seconds
        if not measurable or rows < STEADY_SHARE * self.in_force(bucket):
            state.rows, state.steps, state.seconds = 0, 0, 0.0
            return
        state.rows, state.steps, state.seconds = state.rows + rows, state.steps + 1, state.seconds + seconds
        if state.seconds >= WINDOW_S:
            self._compare(bucket, state)
            state.rows, state.steps, state.seconds = 0, 0, 0.0

    def pace(self, bucket: int) -> float:
        """Present throughput of `bucket` over the measured one; 0 while that is not known."""
        curve = self._curve(bucket)
        return self._bucket(bucket).pace.now if curve.samples else 0.0

    def throttled(self, bucket: int) -> bool:
        """Whether the machine has been much slower than itself for a while."""
        return self._bucket(bucket).pace.throttled

    def take_unsaved(self) -> Mapping[int, Curve]:
        """The curves that changed since the last call."""
        changed = {bucket: self.curves[bucket] for bucket in self.unsaved}
        self.unsaved.clear()
        return changed

    # -- inside ------------------------------------------------------------------------------------

    def _compare(self, bucket: int, state: _Bucket) -> None:
        curve = self._curve(bucket)
        measured = replace(curve, scale=1.0).expected_tps(state.rows / state.steps)
        if measured is None:
            return
        state.pace.observe(state.rows / state.seconds / measured, state.seconds)
        if abs(state.pace.usual - curve.scale) > SAVE_SHARE * curve.scale:
            self._keep(replace(curve, scale=state.pace.usual))

    def _curve(self, bucket: int) -> Curve:
        return self.curves.get(bucket) or Curve(bucket_tokens=bucket)

    def _keep(self, curve: Curve) -> None:
        self.curves[curve.bucket_tokens] = curve
        self.unsaved.add(curve.bucket_tokens)

    def _bucket(self, bucket: int) -> _Bucket:
        if bucket not in self._buckets:
            self._buckets[bucket] = _Bucket(pace=Pace(self._curve(bucket).scale))
        return self._buckets[bucket]


def first_guess(curves: Mapping[int, Curve]) -> int:
    """A provisional cap from buckets measured before: the knee of the shortest; 0 when there is none."""
    knees = [curve.knee.rows for _, curve in sorted(curves.items()) if curve.ended and curve.knee is not None]
    return knees[0] if knees else 0


def promised(curves: Mapping[int, Curve], rows: int) -> tuple[float, float]:
    """Throughput of `rows` decoding together, and of prompts, by the shortest bucket that tells; 0 for none."""
    known = [curve for _, curve in sorted(curves.items())]
    decode = (tps for curve in known if (tps := curve.expected_tps(rows)) is not None)
    prompts = (max(sample.tps for sample in curve.prefill) for curve in known if curve.prefill)
    return next(decode, 0.0), next(prompts, 0.0)
