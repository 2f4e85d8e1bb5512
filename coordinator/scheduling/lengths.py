"""How long answers will be, learnt from those that ended: a distribution for each octave of prompt length. Pure."""

from __future__ import annotations

import math

#: Steps an octave of answer length is cut into: answers of one differ by 9 % at most.
STEPS = 8
#: Answers up to 2^20 tokens.
BINS = 20 * STEPS + 1
#: With fewer rows than this an octave of prompts tells less than all rows together.
ENOUGH = 30
#: The trend of answers over prompts is held flat as by so many rows an octave away from the middle.
FLAT_ROWS = 30.0
#: Rows are put in order by the length that this share of them stays under.
ORDER_SHARE = 0.7
#: Prompt tokens that take about as long as a new one, in a full batch.
PROMPT_TOKENS = 4
#: What follows from the counts is worked out anew after this many more rows, as a share.
STALE_SHARE = 1.02

_CENTRES: tuple[float, ...] = tuple(2.0 ** (step / STEPS) for step in range(BINS))


def octave(prompt_tokens: int) -> int:
    """The bucket of a prompt."""
    return max(prompt_tokens, 1).bit_length() - 1


def _bin(output_tokens: float) -> int:
    return min(int(math.log2(max(output_tokens, 1)) * STEPS + 0.5), BINS - 1)


class _Ended:
    """Answers of one bucket."""

    def __init__(self) -> None:
        self._counts = [0] * BINS
        self.rows = 0
        self.tokens = 0
        #: for each bin the mean of the answers longer than its centre
        self._longer: list[float] = []
        self._longer_rows = 0

    def add(self, output_tokens: int) -> None:
        self._counts[_bin(output_tokens)] += 1
        self.rows += 1
        self.tokens += output_tokens

    def quantile(self, share: float) -> float:
        seen = 0
        for centre, count in zip(_CENTRES, self._counts, strict=True):
            seen += count
            if seen >= share * self.rows:
                return centre
        return _CENTRES[-1]

    def longer_than(self, done_tokens: float) -> float:
        """Mean of the answers that are longer than `done_tokens`; that number when none was."""
        if self.rows > self._longer_rows * STALE_SHARE:
            self._longer, self._longer_rows = self._means(), self.rows
        return max(self._longer[_bin(done_tokens)], done_tokens)

    def _means(self) -> list[float]:
        rows, tokens, means = 0, 0.0, []
        for centre, count in zip(reversed(_CENTRES), reversed(self._counts), strict=True):
            means.append(tokens / rows if rows else 0.0)
            rows, tokens = rows + count, tokens + count * centre
        return means[::-1]


class _Trend:
    """How answers grow or shrink with prompts: a line through the logarithms of both, flatter while rows are few."""

    def __init__(self) -> None:
        self._rows = 0
        self._x = self._y = self._xx = self._xy = 0.0

    def add(self, prompt_tokens: int, output_tokens: int) -> None:
        x, y = math.log2(max(prompt_tokens, 1)), math.log2(max(output_tokens, 1))
        self._rows += 1
        self._x, self._y = self._x + x, self._y + y
        self._xx, self._xy = self._xx + x * x, self._xy + x * y

    def factor(self, octaves: int) -> float:
        """Answers to prompts so many octaves longer over those to others."""
        middle = self._x / self._rows
        spread = self._xx - self._x * middle
        slope = (self._xy - self._y * middle) / (spread + FLAT_ROWS)
        return float(2.0 ** (slope * octaves))


class Lengths:
    """Answers of one job."""

    def __init__(self) -> None:
        self._all = _Ended()
        self._octaves: dict[int, _Ended] = {}
        self._trend = _Trend()

    @property
    def rows(self) -> int:
        """Rows learnt from."""
        return self._all.rows

    def ended(self, prompt_tokens: int, output_tokens: int) -> None:
        """Learns from a row."""
        self._all.add(output_tokens)
        self._octaves.setdefault(octave(prompt_tokens), _Ended()).add(output_tokens)
        self._trend.add(prompt_tokens, output_tokens)

    def mean(self, prompt_octave: int, max_tokens: float) -> float:
        """New tokens to expect of a row; `max_tokens` before any row has ended."""
        ended, factor = self._of(prompt_octave)
        if not ended.rows:
            return max_tokens
        usual = ended.tokens / ended.rows if ended.rows >= ENOUGH else ended.quantile(0.5)
        return min(usual * factor, max_tokens)

    def order(self, prompt_octave: int, max_tokens: float) -> float:
        """New tokens that most rows stay under: what rows are put in order by."""
        ended, factor = self._of(prompt_octave)
        return min(ended.quantile(ORDER_SHARE) * factor, max_tokens) if ended.rows else max_tokens

    def cost(self, prompt_tokens: int, max_tokens: int) -> float:
        """By which rows are put in order, in new tokens."""
        return prompt_tokens / PROMPT_TOKENS + self.order(octave(prompt_tokens), max_tokens)

    def total(self, prompt_octave: int, max_tokens: int, done_tokens: int) -> float:
        """New tokens to expect in all of a row that has made `done_tokens`."""
        ended, factor = self._of(prompt_octave)
        if not ended.rows:
            return max_tokens
        return min(max(ended.longer_than(done_tokens / factor) * factor, done_tokens + 1), max_tokens)

    def _of(self, prompt_octave: int) -> tuple[_Ended, float]:
        """The answers to judge prompts of this octave by, and what they are to be multiplied with."""
        ended = self._octaves.get(prompt_octave)
        if ended is not None and ended.rows >= ENOUGH:
            return ended, 1.0
        known = [bucket for bucket, others in self._octaves.items() if others.rows >= ENOUGH]
        nearest = min(known, key=lambda bucket: abs(bucket - prompt_octave), default=None)
        if nearest is None:
            return self._all, 1.0
        return self._octaves[nearest], self._trend.factor(prompt_octave - nearest)
