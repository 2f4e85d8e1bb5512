"""What a benchmark timed, summed up: medians over runs, the knee, and the table a person reads. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from worker.knee import Sample, knee

#: Runs further apart than this say more about what else the machine did than about the model.
TRUSTED_SPREAD = 0.10


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One timed run of one batch."""

    #: rows together
    batch: int
    #: new tokens per second of all rows, prompts not counted
    total_tps: float
    #: prompt tokens per second
    prompt_tps: float
    #: prompts and answers
    seconds: float
    #: most bytes MLX held
    peak_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """All runs of one batch; each figure is a median."""

    batch: int
    total_tps: float
    #: of one row
    row_tps: float
    prompt_tps: float
    #: total over that of the smallest batch
    speedup: float
    seconds: float
    #: the largest of all runs
    peak_bytes: int
    #: (highest - lowest) / median of the totals
    spread: float
    runs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Batches of one output length."""

    #: "short" or "long"
    name: str
    prompt_tokens: int
    output_tokens: int
    lines: tuple[Line, ...]
    #: rows
    knee: int
    #: why there are no larger batches, empty when the stop rule or the person ended the table
    ended: str = ""

    def as_dict(self) -> dict[str, Any]:
        """The table as JSON has it."""
        return asdict(self)

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> Table:
        """The table that `as_dict` made `plain`."""
        return cls(**{**plain, "lines": tuple(Line(**line) for line in plain["lines"])})


def table(name: str, trials: Sequence[Trial], *, prompt_tokens: int, output_tokens: int, ended: str = "") -> Table:
    """The table of `trials`, of which there is at least one."""
    batches = sorted({trial.batch for trial in trials})
    of = {batch: [trial for trial in trials if trial.batch == batch] for batch in batches}
    least = statistics.median(trial.total_tps for trial in of[batches[0]])
    lines = tuple(_line(of[batch], least) for batch in batches)
    best = knee([Sample(rows=line.batch, tps=line.total_tps) for line in lines])
    return Table(
        name=name,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        lines=lines,
        knee=best.rows,
        ended=ended,
    )


def _line(trials: Sequence[Trial], least_tps: float) -> Line:
    totals = [trial.total_tps for trial in trials]
    total = statistics.median(totals)
    return Line(
        batch=trials[0].batch,
        total_tps=total,
        row_tps=total / trials[0].batch,
        prompt_tps=statistics.median(trial.prompt_tps for trial in trials),
        speedup=total / least_tps,
        seconds=statistics.median(trial.seconds for trial in trials),
        peak_bytes=max(trial.peak_bytes for trial in trials),
        spread=(max(totals) - min(totals)) / total,
        runs=len(trials),
    )


HEAD = ("BATCH", "TOTAL tok/s", "PER ROW tok/s", "PROMPT tok/s", "SPEEDUP", "TIME s", "MEMORY GB", "SPREAD")


def text(shown: Table) -> str:
    """The table as a person reads it, without a last newline."""
    cells = [HEAD, *[_cells(line) for line in shown.lines]]
    widths = [max(len(row[column]) for row in cells) for column in range(len(HEAD))]
    marks = ["", *["  <- knee" if line.batch == shown.knee else "" for line in shown.lines]]
    title = f"{shown.name}: {shown.output_tokens:,} new tokens after {shown.prompt_tokens:,} of prompt"
    body = [
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) + mark
        for row, mark in zip(cells, marks, strict=True)
    ]
    return "\n".join([title, *body, *_notes(shown)])


def _cells(line: Line) -> tuple[str, ...]:
    return (
        str(line.batch),
        f"{line.total_tps:,.1f}",
        f"{line.row_tps:,.1f}",
        f"{line.prompt_tps:,.0f}",
        f"{line.speedup:.2f}x",
        f"{line.seconds:.2f}",
        f"{line.peak_bytes / 1e9:.2f}",
        f"{line.spread:.0%}" if line.runs > 1 else "-",
    )


def _notes(shown: Table) -> list[str]:
    notes = [shown.ended] if shown.ended else []
    restless = [str(line.batch) for line in shown.lines if line.spread > TRUSTED_SPREAD]
    if restless:
        notes.append(
            f"runs at batch {', '.join(restless)} differ by over {TRUSTED_SPREAD:.0%}: something else was using the "
            "machine, or it is too hot"
        )
    return notes
