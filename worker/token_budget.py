"""The knee of embedding: how many tokens, padding counted, one batch should have. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from worker.knee import Curve, Sample, best_gain

#: The smallest budget that is tried; each one after it is twice as large.
FIRST_TOKENS = 256
MOST_TOKENS = 1 << 16
#: Samples are taken on texts of this many tokens, about what the texts of a corpus have.
SAMPLE_TOKENS = 64
#: No batch is larger than what takes this long, seconds: in between, messages and pulses have to pass.
BATCH_S = 1.0
#: Measuring is worth it once this many batches wait, or ...
WORTH_BATCHES = 20
#: ... after this much work, seconds.
WORTH_S = 60.0


def next_tokens(samples: Sequence[Sample], *, most_tokens: int) -> int | None:
    """The budget to sample next, `samples` ascending with tokens for rows; None when the search is over.

    It is over when nothing up to twice the best budget gains, when memory ends, or when batches take too long.
    """
    if not samples:
        return FIRST_TOKENS
    last = samples[-1]
    following = 2 * last.rows
    if following > min(most_tokens, MOST_TOKENS) or following / last.tps > BATCH_S:
        return None
    return following if following <= 2 * best_gain(samples).rows else None


@dataclass(slots=True, kw_only=True)
class TokenBudget:
    """Owned by the embedding loop."""

    #: before it is measured
    provisional: int
    #: what memory allows
    most: int
    #: what was measured, with tokens of a batch for rows
    curve: Curve
    #: True while the curve is not as it is stored
    unsaved: bool = False
    #: seconds of work since the start, or since measuring was last tried
    worked_s: float = 0.0
    #: True once measuring was begun here
    begun: bool = False

    @property
    def tokens(self) -> int:
        """Tokens of a batch now; a single text may have more."""
        knee = self.curve.knee
        chosen = self.provisional if knee is None else knee.rows
        chosen = chosen if self.curve.ended else max(chosen, self.provisional)
        return max(1, min(chosen, self.most))

    def due(self, waiting_tokens: int) -> bool:
        """Whether measuring is worth its time now."""
        plenty = waiting_tokens >= WORTH_BATCHES * self.tokens
        return not self.curve.ended and plenty and (not self.begun or self.worked_s >= WORTH_S)

    def begin(self) -> None:
        """A turn of measuring begins."""
        self.begun, self.worked_s = True, 0.0

    def next_tokens(self) -> int | None:
        """The budget to sample next; None for none."""
        return None if self.curve.ended else next_tokens(self.curve.samples, most_tokens=self.most)

    def sampled(self, sample: Sample) -> None:
        """Takes a sample of `next_tokens`."""
        samples = (*self.curve.samples, sample)
        ended = next_tokens(samples, most_tokens=self.most) is None
        self.curve, self.unsaved = replace(self.curve, samples=samples, ended=ended), True

    def ran_out(self) -> None:
        """A sample met the end of memory: the search is over."""
        self.curve, self.unsaved = replace(self.curve, ended=True), True

    def halve(self, tokens: int) -> None:
        """A real batch of so many tokens met the end of memory."""
        self.most = max(1, min(tokens, self.tokens) // 2)
