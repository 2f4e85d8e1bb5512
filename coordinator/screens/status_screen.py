"""What `fleet status` shows: a snapshot of the fleet in lines that fit a screen. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from textwrap import wrap

from rich.console import Console, ConsoleOptions, RenderResult
from rich.style import Style
from rich.text import Text

from coordinator.planning.tariff import Tariff, money
from coordinator.screens.progress import duration
from coordinator.screens.screen_table import GAP, MORE, Column, fit, printable, shortened
from coordinator.screens.snapshot import FleetSnapshot, JobLine, MacLine, MacState
from coordinator.screens.wording import age, counted

#: Macs that do what they are here for, and draw power for it.
AT_WORK = frozenset({MacState.WORKING, MacState.MEASURING, MacState.THROTTLED, MacState.LOADING})
#: Macs that somebody should look at: shown first where not all have room.
IN_TROUBLE = frozenset({MacState.LOST, MacState.STALE, MacState.KICKED, MacState.THROTTLED, MacState.PAUSED})
#: Macs without a lease: not counted among the fleet's.
AWAY = frozenset({MacState.PRESENT, MacState.LOST, MacState.KICKED})

#: Lines of events that even a full screen keeps, and of jobs where Macs have too little room.
EVENT_LINES = 3
JOB_LINES = 6
#: Events told where nothing else bounds them.
PRINTED_EVENTS = 10
_ENDLESS = 1_000_000
_HOUR_S = 3600
_UNITS = ((24 * _HOUR_S, "d"), (_HOUR_S, "h"), (60, "min"), (1, "s"))

_STYLES = {
    MacState.WORKING: "green",
    MacState.LOADING: "cyan",
    MacState.MEASURING: "cyan",
    MacState.JOINING: "cyan",
    MacState.PAUSED: "yellow",
    MacState.THROTTLED: "yellow",
    MacState.STALE: "yellow",
    MacState.LOST: "red",
    MacState.KICKED: "red",
}
_JOB_STYLES = {"running": "green", "reading": "cyan", "writing": "cyan", "failed": "red", "cancelled": "yellow"}
#: Where not all have room, those that are worked on come first.
_JOB_ORDER = {state: at for at, state in enumerate(("running", "writing", "reading", "queued", "failed"))}
_PLAIN, _FAINT, _HEAD = "", "dim", "bold"


class StatusScreen:
    """A snapshot, to be drawn by rich in whatever room there is; without a height every line is drawn."""

    def __init__(self, snapshot: FleetSnapshot, *, tariff: Tariff | None = None, notice: str = "") -> None:
        """`notice` is told above all else."""
        self._snapshot = snapshot
        self._tariff = tariff
        self._notice = notice

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for text, style in lines(
            self._snapshot, options.max_width, options.height, tariff=self._tariff, notice=self._notice
        ):
            yield Text(text, style=Style.parse(style), no_wrap=True, overflow="crop")


def lines(
    snapshot: FleetSnapshot, width: int, height: int | None, *, tariff: Tariff | None = None, notice: str = ""
) -> Iterator[tuple[str, str]]:
    """(text, style) of each line, none longer than `width`, no more than `height` of them."""
    top = [(title(snapshot), _HEAD), *([(printable(notice), "bold yellow")] if notice else [])]
    room = _Room(snapshot, height, len(top))
    made = [
        *top,
        ("", _PLAIN),
        *_jobs(snapshot.jobs, cost_per_million(snapshot, tariff), room.jobs, width, below=height is None),
        ("", _PLAIN),
        *_macs(snapshot.macs, room.macs, width),
        *_events(snapshot, room.events),
    ]
    if height is not None and len(made) > height:
        made = [*made[: height - 1], (MORE, _FAINT)]
    for text, style in made:
        yield shortened(text, width), style


class _Room:
    """How many lines each part gets: Macs come before jobs over JOB_LINES, both before events over EVENT_LINES."""

    def __init__(self, snapshot: FleetSnapshot, height: int | None, top: int) -> None:
        jobs, macs = len(snapshot.jobs) or 1, len(snapshot.macs) or 1
        shown = len(snapshot.events) if height is not None else min(len(snapshot.events), PRINTED_EVENTS)
        events = 1 + shown if shown else 0  # a blank line above them
        kept = min(events, 1 + EVENT_LINES)
        heads = bool(snapshot.jobs) + bool(snapshot.macs)
        free = _ENDLESS if height is None else height - top - 2 - heads
        self.jobs = min(jobs, max(free - macs - kept, JOB_LINES))
        self.macs = min(macs, max(free - self.jobs - kept, 1))
        self.events = min(events, max(free - self.jobs - self.macs, 0))


def title(snapshot: FleetSnapshot) -> str:
    """Who this is, and the fleet in one line."""
    joined = [mac for mac in snapshot.macs if mac.state not in AWAY]
    speed = sum(mac.output_tps for mac in joined)
    parts = [
        f"fleet on {snapshot.coordinator}",
        f"up {duration(snapshot.now - snapshot.started)}" if snapshot.started else "",
        f"{counted(len(joined), 'Mac')}, {sum(mac.state in AT_WORK for mac in joined)} at work",
        f"{speed:,.0f} tok/s" if speed else "",
        " ".join(snapshot.addresses[:1]),
    ]
    return printable(GAP.join(part for part in parts if part))


def _section(
    columns: Sequence[Column], styles: Sequence[str], room: int, width: int, more: str
) -> Iterator[tuple[str, str]]:
    """A table under its head, in `room` lines; with too few of them `more` tells of the rest."""
    if not styles:
        yield more, _FAINT
        return
    shown = len(styles) if room >= len(styles) else max(room - 1, 0)
    table = fit(columns, width)
    yield _joined(table.head), _FAINT
    for number in range(shown):
        yield _joined(table.row(number)), styles[number]
    if shown < len(styles):
        yield more, _FAINT


def _column(title: str, cells: Sequence[str], rank: int = 0, *, right: bool = True, least: int = 0) -> Column:
    return Column(title=title, cells=tuple(map(printable, cells)), rank=rank, right=right, least=least)


def _joined(cells: Sequence[str]) -> str:
    return GAP.join(cells).rstrip()


# -- jobs ------------------------------------------------------------------------------------------


def _jobs(
    jobs: Sequence[JobLine], cost: float | None, room: int, width: int, *, below: bool
) -> Iterator[tuple[str, str]]:
    """The table; why a job failed stands `below` it in full, or as far as there is room beside its state."""
    reasons = [(job, f"job {job.id} {job.state}: {printable(job.error)}") for job in jobs if below and job.error]
    jobs = [replace(job, error="") for job in jobs] if below else jobs
    ordered = list(jobs)
    if room < len(jobs):
        ordered.sort(key=lambda job: _JOB_ORDER.get(job.state, len(_JOB_ORDER)))
    rest = ordered[max(room - 1, 0) :]
    more = f"{MORE} {counted(len(rest), 'more job')}: {_tally(Counter(job.state for job in rest))}"
    more = more if jobs else "no jobs: `fleet submit` gives the fleet one"
    styles = [_JOB_STYLES.get(job.state, _PLAIN) for job in ordered]
    yield from _section(job_columns(ordered, cost), styles, room, width, more)
    for job, reason in reasons:
        for line in wrap(reason, width, subsequent_indent=" " * len(GAP)):
            yield line, _JOB_STYLES.get(job.state, _PLAIN)


def job_columns(jobs: Sequence[JobLine], cost: float | None) -> list[Column]:
    """A line for each job; `cost` is that of a million new tokens, the same in whichever job."""
    return [
        _column("JOB", [str(job.id) for job in jobs]),
        _column("TASK", [job.task for job in jobs], 5, right=False),
        _column("STATE", [_state(job.state, job.error) for job in jobs], right=False, least=10),
        _column("DONE", [_done(job) for job in jobs]),
        _column("", [_percent(job) for job in jobs], 6),
        _column("FAILED", [f"{job.failed:,}" for job in jobs], 1),
        _column("RETRIED", [f"{job.retried:,}" for job in jobs], 4),
        _column("TOK/S", [_against(job.output_tps, job.planned_tps) for job in jobs], 2),
        _column("PAD", [f"{job.padding_share:.0%}" if job.padding_share else "" for job in jobs], 7),
        _column("LEFT", [left(job.eta_s) for job in jobs], 1),
        _column("COST/1M", [money(cost) if cost is not None and job.output_tps else "" for job in jobs], 3),
        _column("MODEL", [_short(job.model) for job in jobs], 8, right=False, least=8),
        _column("PRIORITY", [str(job.priority) if job.priority else "" for job in jobs], 9),
    ]


def _done(job: JobLine) -> str:
    return f"{job.done:,}/{job.requests:,}{'' if job.intake_complete else '+'}"


def _percent(job: JobLine) -> str:
    if not job.requests or not job.intake_complete:
        return ""
    return f"{int(100 * (job.done + job.failed) / job.requests)}%"


def left(eta_s: tuple[float, float] | None) -> str:
    """`65-80 min`: a range of time left in one unit, one figure when both ends read the same."""
    if eta_s is None:
        return ""
    size, unit = next(((size, unit) for size, unit in _UNITS if eta_s[1] >= 3 * size), _UNITS[-1])
    digits = 1 if size >= _HOUR_S else 0
    soonest, latest = (f"{max(end, 0.0) / size:.{digits}f}" for end in eta_s)
    return f"{soonest} {unit}" if soonest == latest else f"{soonest}-{latest} {unit}"


def cost_per_million(snapshot: FleetSnapshot, tariff: Tariff | None) -> float | None:
    """Money for a million new tokens: what all Macs at work draw, over what they make. None when not known."""
    working = [mac for mac in snapshot.macs if mac.state in AT_WORK]
    if tariff is None:
        return None
    return tariff.cost_per_million([mac.name for mac in working], sum(mac.output_tps for mac in working))


# -- Macs ------------------------------------------------------------------------------------------


def _macs(macs: Sequence[MacLine], room: int, width: int) -> Iterator[tuple[str, str]]:
    ordered = list(macs)
    if room < len(macs):
        ordered.sort(key=lambda mac: mac.state not in IN_TROUBLE)
    rest = ordered[max(room - 1, 0) :]
    more = f"{MORE} {counted(len(rest), 'more Mac')}: {_tally(Counter(mac.state.value for mac in rest))}"
    more = more if macs else "no Macs: `fleet join` on each brings them in"
    yield from _section(mac_columns(ordered), [_STYLES.get(mac.state, _PLAIN) for mac in ordered], room, width, more)


def mac_columns(macs: Sequence[MacLine]) -> list[Column]:
    """A line for each Mac."""

    return [
        _column("MAC", [mac.name or mac.id for mac in macs], right=False, least=10),
        _column("CHIP", [mac.chip.removeprefix("Apple ") for mac in macs], 5, right=False, least=8),
        _column("MEMORY", [_memory(mac) for mac in macs], 4),
        _column("BATCH", [f"{mac.running:,}/{mac.cap:,}" if mac.cap else "" for mac in macs], 3),
        _column("TOK/S", [_speed(mac) for mac in macs], 1),
        _column("SHARE", [f"{mac.share:.0%}" if mac.share else "" for mac in macs], 2),
        _column("ROWS", [f"{mac.rows_done:,}" if mac.rows_done else "" for mac in macs], 6),
        _column("STATE", [_state(mac.state.value, mac.note) for mac in macs], right=False, least=15),
        _column("QUEUED", [f"{mac.assigned:,}" if mac.assigned else "" for mac in macs], 8),
        _column("MODEL", [_short(mac.model) for mac in macs], 7, right=False, least=8),
    ]


def _speed(mac: MacLine) -> str:
    """A dash before it has worked with this model: a 0 would tell of a Mac that came to a stop."""
    unknown = not mac.rows_done if mac.measured_tps else mac.state is MacState.WORKING
    if unknown and not mac.output_tps:
        return "-"
    return _against(mac.output_tps, mac.measured_tps)


def _memory(mac: MacLine) -> str:
    """Gigabytes used and there; what is not known is left out."""
    there = f"{mac.memory_bytes >> 30:,} GB" if mac.memory_bytes else ""
    if not mac.used_bytes:
        return there
    used = mac.used_bytes / (1 << 30)
    told = f"{used:.1f}" if used < 10 else f"{used:,.0f}"
    return f"{told}/{there}" if there else f"{told} GB"


# -- both ------------------------------------------------------------------------------------------


def _state(state: str, reason: str) -> str:
    return f"{state}: {reason}" if reason else state


def _against(now: float, promised: float) -> str:
    """A rate against what was promised; neither, when it is not known."""
    if not promised:
        return f"{now:,.0f}" if now else ""
    return f"{now:,.0f}/{promised:,.0f}"


def _short(model: str) -> str:
    """The last part of a folder or hub id."""
    return model.rstrip("/").rpartition("/")[2]


def _tally(states: Counter[str]) -> str:
    return ", ".join(f"{count:,} {state}" for state, count in states.most_common())


def _events(snapshot: FleetSnapshot, room: int) -> Iterator[tuple[str, str]]:
    """The newest first."""
    newest = snapshot.events[::-1][: max(room - 1, 0)]
    ages = [age(snapshot.now - event.at) for event in newest]
    if newest:
        yield "", _PLAIN
    for event, old in zip(newest, ages, strict=True):
        yield f"{old:>{max(map(len, ages))}} ago{GAP}{printable(event.text)}", _FAINT
