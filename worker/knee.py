"""The knee: from throughput samples to the batch worth running, and which sample to take next. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

#: The knee reaches this share of the best throughput measured.
KNEE_SHARE = 0.95
#: A larger batch has to gain this much over the best before it.
GAIN = 1.02
#: Batches are tried up to here at least: the first ones can dip (kernels change between 8 and 16 rows), and all
#: published curves still gain at 8.
LEAST_ROWS = 16
#: No batch is larger: the host's work for each row and step is no longer hidden behind the device's.
MOST_ROWS = 256

#: Fewer prompt tokens per evaluation only cost launches.
LEAST_PREFILL_TOKENS = 64

#: The shortest bucket ends here; each one after it is twice as long.
FIRST_BUCKET_TOKENS = 256
#: Where in a bucket its samples are taken: the middle between its ends.
FILL_SHARE = 0.75


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Steady decoding at one batch size."""

    #: rows decoding together
    rows: int
    #: new tokens per second of all rows
    tps: float
    #: most bytes MLX held meanwhile, 0 when not read
    peak_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefill:
    """How prompts are computed."""

    #: prompts together
    rows: int
    #: tokens per evaluation
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillSample:
    """Prompts computed with one setting."""

    setting: Prefill
    #: prompt tokens per second, padding not counted
    tps: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """What is known of one length bucket."""

    #: rows of at most this many tokens, prompt and answer
    bucket_tokens: int
    #: by rows, ascending
    samples: tuple[Sample, ...] = ()
    #: True once the stop rule or memory ended the sweep
    ended: bool = False
    #: in the order they were taken
    prefill: tuple[PrefillSample, ...] = ()
    #: True once no neighbour of the best setting is left to try
    prefill_ended: bool = False
    #: throughput of real batches over that of the samples, learnt while running
    scale: float = 1.0

    @property
    def knee(self) -> Sample | None:
        """The knee of the samples so far."""
        return knee(self.samples) if self.samples else None

    @property
    def setting(self) -> Prefill | None:
        """The best prefill setting so far."""
        return best_setting(self.prefill) if self.prefill else None

    def expected_tps(self, rows: float) -> float | None:
        """Throughput of a real batch of so many rows; None outside what was measured."""
        found = interpolated(self.samples, rows)
        return None if found is None else found * self.scale


def bucket_of(tokens: int) -> int:
    """The bucket of a row of `tokens`, prompt and answer: the most tokens a row in it has."""
    bucket = FIRST_BUCKET_TOKENS
    while bucket < tokens:
        bucket *= 2
    return bucket


def fill_tokens(bucket: int) -> int:
    """Tokens cached in each row when the bucket is measured."""
    return int(bucket * FILL_SHARE)


def knee(samples: Sequence[Sample]) -> Sample:
    """The smallest batch whose throughput is at least `KNEE_SHARE` of the best."""
    enough = KNEE_SHARE * max(sample.tps for sample in samples)
    return min((sample for sample in samples if sample.tps >= enough), key=lambda sample: sample.rows)


def next_rows(samples: Sequence[Sample], *, most_rows: int) -> int | None:
    """The batch to sample next, `samples` ascending; None when the sweep is over.

    It is over when no sample up to twice the best batch gains `GAIN`, so that a dip does not end it, or when
    `most_rows`, what memory allows, was sampled.
    """
    most = max(1, min(most_rows, MOST_ROWS))
    if not samples:
        return 1
    last = samples[-1].rows
    following = min(next_size(last), most)
    if following <= last or following > max(2 * best_gain(samples).rows, LEAST_ROWS):
        return None
    return following


def best_gain(samples: Sequence[Sample]) -> Sample:
    """The last sample that gained `GAIN` over the best before it."""
    best = samples[0]
    for sample in samples[1:]:
        if sample.tps >= best.tps * GAIN:
            best = sample
    return best


def next_size(rows: int) -> int:
    """The size after `rows` in 1 2 4 8 12 16 24 32 48 64 96 ..."""
    size = 1
    while size <= rows:
        power = 1 << (size.bit_length() - 1)
        size = power + power // 2 if size == power and power >= 8 else 2 * power
    return size


def interpolated(samples: Sequence[Sample], rows: float) -> float | None:
    """Throughput at `rows` on the line between its neighbours; None outside the samples."""
    for left, right in pairwise(samples):
        if left.rows <= rows <= right.rows:
            part = (rows - left.rows) / (right.rows - left.rows)
            return left.tps + part * (right.tps - left.tps)
    return samples[0].tps if len(samples) == 1 and samples[0].rows == rows else None


# -- prompts ---------------------------------------------------------------------------------------


def best_setting(samples: Sequence[PrefillSample]) -> Prefill:
    """The setting of the fastest sample; of nearly equal ones the first taken."""
    best = samples[0]
    for sample in samples[1:]:
        if sample.tps >= best.tps * GAIN:
            best = sample
    return best.setting


def next_setting(samples: Sequence[PrefillSample], *, start: Prefill, most: Prefill) -> Prefill | None:
    """The setting to try next: `start`, then the best one's neighbours, tokens before rows; None when all were."""
    if not samples:
        return start
    tried = {sample.setting for sample in samples}
    best = best_setting(samples)
    for neighbour in (
        Prefill(rows=best.rows, tokens=best.tokens * 2),
        Prefill(rows=best.rows, tokens=best.tokens // 2),
        Prefill(rows=best.rows * 2, tokens=best.tokens),
        Prefill(rows=best.rows // 2, tokens=best.tokens),
    ):
        if neighbour not in tried and _allowed(neighbour, most):
            return neighbour
    return None


def _allowed(setting: Prefill, most: Prefill) -> bool:
    return 1 <= setting.rows <= most.rows and LEAST_PREFILL_TOKENS <= setting.tokens <= most.tokens
