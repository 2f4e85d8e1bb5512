"""A throughput curve of one machine, model and length, and its knee: the smallest batch worth running. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

#: The knee reaches this share of the best throughput measured.
KNEE_SHARE = 0.95
#: A larger batch, or another prefill setting, has to gain this much over the best before it.
GAIN = 1.02
#: The shortest bucket ends here; each one after it is twice as long.
FIRST_BUCKET_TOKENS = 256


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


def knee(samples: Sequence[Sample]) -> Sample:
    """The smallest batch whose throughput is at least `KNEE_SHARE` of the best."""
    enough = KNEE_SHARE * max(sample.tps for sample in samples)
    return min((sample for sample in samples if sample.tps >= enough), key=lambda sample: sample.rows)


def interpolated(samples: Sequence[Sample], rows: float) -> float | None:
    """Throughput at `rows` on the line between its neighbours; None outside the samples."""
    for left, right in pairwise(samples):
        if left.rows <= rows <= right.rows:
            part = (rows - left.rows) / (right.rows - left.rows)
            return left.tps + part * (right.tps - left.tps)
    return samples[0].tps if len(samples) == 1 and samples[0].rows == rows else None


def best_setting(samples: Sequence[PrefillSample]) -> Prefill:
    """The setting of the fastest sample; of nearly equal ones the first taken."""
    best = samples[0]
    for sample in samples[1:]:
        if sample.tps >= best.tps * GAIN:
            best = sample
    return best.setting
