"""The knee: which throughput sample to take next, and when to stop. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from fleet.curve import GAIN
from fleet.curve import Curve as Curve
from fleet.curve import Prefill as Prefill
from fleet.curve import PrefillSample as PrefillSample
from fleet.curve import Sample as Sample
from fleet.curve import best_setting as best_setting
from fleet.curve import bucket_of as bucket_of
from fleet.curve import interpolated as interpolated
from fleet.curve import knee as knee

#: Batches are tried up to here at least: the first ones can dip (kernels change between 8 and 16 rows), and all
#: published curves still gain at 8.
LEAST_ROWS = 16
#: No batch is larger: the host's work for each row and step is no longer hidden behind the device's.
MOST_ROWS = 256

#: Fewer prompt tokens per evaluation only cost launches.
LEAST_PREFILL_TOKENS = 64

#: Where in a bucket its samples are taken: the middle between its ends.
FILL_SHARE = 0.75


def fill_tokens(bucket: int) -> int:
    """Tokens cached in each row when the bucket is measured."""
    return int(bucket * FILL_SHARE)


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


# -- prompts ---------------------------------------------------------------------------------------


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
