"""The ways in which `fleet status` shows snapshots: drawn again and again, printed, or as JSON."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from typing import TextIO

from rich.console import Console
from rich.live import Live

from coordinator.planning.tariff import Tariff
from coordinator.screens.progress import duration
from coordinator.screens.snapshot import FleetSnapshot
from coordinator.screens.status_screen import StatusScreen, cost_per_million
from fleet.errors import FleetError

#: Gives the fleet now, or raises FleetError.
Source = Callable[[], FleetSnapshot]

#: Between two snapshots on a terminal and as JSON, seconds; where they are printed below each other.
LIVE_S = 1.0
PRINT_S = 5.0
#: Columns where nothing says how many there are: all that is told of a fleet has room.
WIDE = 160


def can_draw(stream: TextIO) -> bool:
    """Whether `stream` is a terminal that can be drawn on."""
    console = Console(file=stream)
    return console.is_terminal and not console.is_dumb_terminal


def draw(source: Source, stream: TextIO, tariff: Tariff | None, every_s: float = LIVE_S) -> None:
    """Draws the fleet until Ctrl-C, and leaves the last view behind; what fails after a first view is told in it."""
    console = Console(file=stream)
    snapshot, failing_since, notice = source(), 0.0, ""
    try:
        with Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                live.update(StatusScreen(snapshot, tariff=tariff, notice=notice), refresh=True)
                time.sleep(every_s)
                try:
                    snapshot, failing_since, notice = source(), 0.0, ""
                except FleetError as error:
                    failing_since = failing_since or time.monotonic()
                    notice = f"as of {duration(time.monotonic() - failing_since + every_s)} ago: {error}"
    except KeyboardInterrupt:
        console.print(StatusScreen(snapshot, tariff=tariff, notice=notice))


def print_once(source: Source, stream: TextIO, tariff: Tariff | None) -> None:
    """Prints one snapshot, whole."""
    columns = shutil.get_terminal_size((WIDE, 0)).columns
    console = Console(file=stream, width=columns)
    console.print(StatusScreen(source(), tariff=tariff))
    stream.flush()


def print_json(source: Source, stream: TextIO, tariff: Tariff | None) -> None:
    """Prints one snapshot as a line of JSON."""
    snapshot = source()
    cost = {"cost_per_million": cost_per_million(snapshot, tariff)} if tariff else {}
    print(json.dumps({**asdict(snapshot), **cost}), file=stream, flush=True)


def repeat(show: Callable[[], None], every_s: float) -> None:
    """Shows again and again until Ctrl-C."""
    with suppress(KeyboardInterrupt):
        while True:
            show()
            time.sleep(every_s)
