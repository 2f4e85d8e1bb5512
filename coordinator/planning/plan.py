"""How long a backlog will take on which Macs, from measured speeds. Pure.

Rows of a length cost a Mac `out / decode + in / prefill` seconds, both rates those of its full batch. The longest go
first, each to the Macs whose memory holds it, filled up evenly; no plan is shorter than its longest row.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from coordinator.planning.tariff import Tariff
from fleet.curve import Curve, bucket_of

#: Rows are told apart by length in steps of so many tokens, in which caches grow.
STEP_TOKENS = 256
#: Where prompts were not timed: their tokens a second over new ones. gpt-oss-20b on Apple silicon: 600 over 97 with one
#: row, 1,386 over 273 with eight (tests/curves.json).
PROMPT_OVER_DECODE = 5.0
#: Work a second over what the curves promise, at best, usually and at worst: mixed lengths, joining rows, last batch.
BEST, USUAL, WORST = 1.0, 0.95, 0.85
#: Another backlog's answers may be so many times longer, or shorter, on average.
LEARNT_SPREAD = 1.25


@dataclass(slots=True, kw_only=True)
class Tally:
    """Rows of about one length."""

    rows: int = 0
    input_tokens: int = 0
    #: new tokens at most, of all rows
    max_tokens: int = 0


@dataclass(slots=True)
class Load:
    """What is to be computed, by tokens of prompt and longest answer, rounded up to STEP_TOKENS."""

    tallies: dict[int, Tally] = field(default_factory=dict)

    def add(self, input_tokens: int, max_tokens: int) -> None:
        """Counts a row."""
        tally = self.tallies.setdefault(-(-(input_tokens + max_tokens) // STEP_TOKENS) * STEP_TOKENS, Tally())
        tally.rows += 1
        tally.input_tokens += input_tokens
        tally.max_tokens += max_tokens

    @property
    def rows(self) -> int:
        """All rows."""
        return sum(tally.rows for tally in self.tallies.values())

    @property
    def input_tokens(self) -> int:
        """All prompt tokens."""
        return sum(tally.input_tokens for tally in self.tallies.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """How long answers are expected to be: the least, the mean, the most."""

    least: float
    mean: float
    most: float
    #: whether the three are new tokens of a row; else they are shares of a row's max_tokens
    in_tokens: bool
    #: where they come from, in words
    origin: str

    def of(self, tally: Tally, figure: float) -> float:
        """New tokens of all rows of `tally` when `figure` holds."""
        return min(figure * tally.rows, tally.max_tokens) if self.in_tokens else figure * tally.max_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """A full batch of one length."""

    #: rows in it
    batch: int
    #: new tokens per second of all rows
    decode_tps: float
    prefill_tps: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A Mac as a plan knows it."""

    name: str
    #: by length bucket, at least one
    rates: Mapping[int, Rates]
    #: prompt and answer of the longest row that its memory holds; 0 when not known
    longest_tokens: int = 0

    def rates_of(self, tokens: int) -> Rates:
        """Those of rows of this length: of its bucket, else of the next longer one measured, else of the longest."""
        bucket = bucket_of(tokens)
        return self.rates[min((b for b in self.rates if b >= bucket), default=max(self.rates))]

    def holds(self, tokens: int) -> bool:
        """Whether a row of this length fits."""
        return not self.longest_tokens or tokens <= self.longest_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What one Mac does."""

    name: str
    rows: int
    #: it computes this long
    seconds: float
    #: of all that is computed, by time that the fastest way takes, 0 to 1
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a backlog will take."""

    rows: int
    input_tokens: int
    #: least, expected, most
    output_tokens: tuple[int, int, int]
    #: shortest, expected, longest; without loading models
    seconds: tuple[float, float, float]
    parts: tuple[Part, ...]
    #: rows that no Mac's memory holds; not in what is above
    unfit_rows: int
    #: energy, None without watts
    kwh: float | None = None
    #: money, None without a price
    cost: float | None = None
    #: money for a million new tokens
    cost_per_million: float | None = None


def machine(name: str, curves: Mapping[int, Curve], longest_tokens: int = 0) -> Machine | None:
    """The Mac of which these curves were measured; None when they hold no sample."""
    rates = {bucket: found for bucket, curve in curves.items() if (found := _rates(curve)) is not None}
    return Machine(name=name, rates=rates, longest_tokens=longest_tokens) if rates else None


def plan(load: Load, machines: Sequence[Machine], answers: Answers, tariff: Tariff | None = None) -> Plan:
    """The plan of `load` over these Macs, at least one."""
    fitting = {tokens: tally for tokens, tally in load.tallies.items() if any(m.holds(tokens) for m in machines)}
    figures = (answers.least, answers.mean, answers.most)
    output = tuple(round(sum(answers.of(tally, figure) for tally in fitting.values())) for figure in figures)
    spreads = [_spread(fitting, machines, answers, figure) for figure in figures]
    expected = spreads[1]
    seconds = tuple(
        max(spread.longest_s, spread.level_s) / pace for spread, pace in zip(spreads, (BEST, USUAL, WORST), strict=True)
    )
    busy = [(name, spent / USUAL) for name, spent in expected.seconds.items()]
    kwh = tariff.kwh(busy) if tariff else None
    cost = kwh * tariff.price if kwh is not None and tariff is not None and tariff.price is not None else None
    return Plan(
        rows=sum(tally.rows for tally in fitting.values()),
        input_tokens=sum(tally.input_tokens for tally in fitting.values()),
        output_tokens=(output[0], output[1], output[2]),
        seconds=(seconds[0], seconds[1], seconds[2]),
        parts=_parts(expected, dict(busy)),
        unfit_rows=load.rows - sum(tally.rows for tally in fitting.values()),
        kwh=kwh,
        cost=cost,
        cost_per_million=cost / output[1] * 1e6 if cost is not None and output[1] else None,
    )


@dataclass(slots=True, kw_only=True)
class _Spread:
    """Work poured over Macs."""

    #: by name
    seconds: dict[str, float]
    rows: dict[str, float]
    #: the longest row's time on the Mac that is quickest with it
    longest_s: float = 0.0

    @property
    def level_s(self) -> float:
        """When the last Mac ends."""
        return max(self.seconds.values())


def _spread(tallies: Mapping[int, Tally], machines: Sequence[Machine], answers: Answers, figure: float) -> _Spread:
    spread = _Spread(seconds={m.name: 0.0 for m in machines}, rows={m.name: 0.0 for m in machines})
    for tokens in sorted(tallies, reverse=True):
        tally = tallies[tokens]
        able = [m for m in machines if m.holds(tokens)]
        output = answers.of(tally, figure)
        costs = {m.name: _seconds(m.rates_of(tokens), tally.input_tokens, output) / tally.rows for m in able}
        _pour(spread, costs, tally.rows)
        alone = (_row_s(m.rates_of(tokens), tally.input_tokens / tally.rows, output / tally.rows) for m in able)
        spread.longest_s = max(spread.longest_s, min(alone))
    return spread


def _pour(spread: _Spread, costs: Mapping[str, float], rows: int) -> None:
    """Gives `rows` of equal length to the Macs in `costs` (seconds a row) so that those who get any end together."""
    waiting = sorted(costs, key=lambda name: spread.seconds[name])
    filled: list[str] = []
    level = 0.0
    while waiting and (not filled or spread.seconds[waiting[0]] < level):
        filled.append(waiting.pop(0))
        done = sum(spread.seconds[name] / costs[name] for name in filled)
        level = (rows + done) / sum(1 / costs[name] for name in filled)
    for name in filled:
        spread.rows[name] += (level - spread.seconds[name]) / costs[name]
        spread.seconds[name] = level


def _seconds(rates: Rates, input_tokens: float, output_tokens: float) -> float:
    """In a full batch; never 0, so that a row costs something."""
    return max(output_tokens / rates.decode_tps + input_tokens / rates.prefill_tps, 1e-9)


def _row_s(rates: Rates, input_tokens: float, output_tokens: float) -> float:
    """One row in a full batch, from its prompt to its end."""
    return input_tokens / rates.prefill_tps + output_tokens * rates.batch / rates.decode_tps


def _parts(spread: _Spread, busy: Mapping[str, float]) -> tuple[Part, ...]:
    rows = max(sum(spread.rows.values()), 1e-9)
    return tuple(
        Part(name=name, rows=round(spread.rows[name]), seconds=busy[name], share=spread.rows[name] / rows)
        for name in spread.rows
    )


def _rates(curve: Curve) -> Rates | None:
    """At the curve's knee."""
    knee = curve.knee
    if knee is None:
        return None
    decode_tps = knee.tps * curve.scale
    prompts = [sample.tps for sample in curve.prefill if sample.setting == curve.setting]
    return Rates(
        batch=knee.rows, decode_tps=decode_tps, prefill_tps=prompts[0] if prompts else PROMPT_OVER_DECODE * decode_tps
    )


def expected_answers(means: Iterable[tuple[int, float]]) -> Answers | None:
    """What earlier jobs tell: (rows, mean new tokens of a row) of each; None when there were none."""
    known = [(rows, mean) for rows, mean in means if rows]
    if not known:
        return None
    mean = sum(rows * tokens for rows, tokens in known) / sum(rows for rows, _ in known)
    seen = [tokens for _, tokens in known]
    return Answers(
        least=min([*seen, mean / LEARNT_SPREAD]),
        mean=mean,
        most=max([*seen, mean * LEARNT_SPREAD]),
        in_tokens=True,
        origin=f"{mean:,.0f} new tokens a row, as in {len(known)} earlier job{'s' if len(known) > 1 else ''}",
    )


#: Before any job: answers use so much of max_tokens.
UNKNOWN = Answers(
    least=0.25, mean=0.5, most=1.0, in_tokens=False, origin="answers use half of max_tokens (a quarter to all of it)"
)
#: Labels are short, and decoded to their end.
LABELS = Answers(least=0.5, mean=1.0, most=1.0, in_tokens=False, origin="every answer is as long as the longest label")
