"""How far a run is, on stderr: a bar on a terminal, a plain line every few seconds elsewhere, nothing when quiet."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol, TextIO

from coordinator.screens.wording import counted

if TYPE_CHECKING:
    from coordinator.control.run_view import RunView

#: Seconds between two plain lines; a log of a night then stays readable.
LINE_S = 5.0
#: Less is not told: the last rows of a run are often done later than was reckoned.
LEAST_LEFT_S = 1.0


class Drawing(Protocol):
    """One way to show views of a run."""

    def show(self, view: RunView) -> None: ...

    def close(self) -> None: ...


class Progress:
    """What a run shows while it works; a context, so that the terminal is left in order."""

    def __init__(self, *, quiet: bool, stream: TextIO | None = None) -> None:
        stream = stream or sys.stderr
        self.drawing: Drawing | None = None
        if not quiet:
            self.drawing = Bar(stream) if stream.isatty() else Lines(stream)

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            if self.drawing is not None:
                self.drawing.close()

    def show(self, view: RunView) -> None:
        """Takes the newest view; what is drawn of it is the drawing's choice."""
        if self.drawing is None:
            return
        try:
            self.drawing.show(view)
        except OSError:
            self.drawing = None  # nobody looks any more: the terminal or the pipe is gone, the run goes on


class Lines:
    """A line when the state changes and every LINE_S; the last view is always shown."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._due_s = 0.0
        self._state = ""
        self._unseen: RunView | None = None

    def show(self, view: RunView) -> None:
        """Writes a line when one is due."""
        now = self._clock()
        if view.state == self._state and now < self._due_s:
            self._unseen = view
            return
        self._write(view)
        self._due_s = now + LINE_S
        self._state = view.state

    def close(self) -> None:
        """Writes the last view, where it was not."""
        if self._unseen is not None:
            self._write(self._unseen)

    def _write(self, view: RunView) -> None:
        self._unseen = None
        print(", ".join([view.state, *figures(view)]), file=self._stream, flush=True)


class Bar:
    """One line that is drawn again at each view; no thread of its own."""

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as RichProgress

        self._bar = RichProgress(
            TextColumn("{task.description:<13}", markup=False),
            BarColumn(),
            TextColumn("{task.fields[figures]}", markup=False),
            console=Console(file=stream),
            auto_refresh=False,
        )
        self._task = self._bar.add_task("starting", total=None, figures="")
        self._bar.start()

    def show(self, view: RunView) -> None:
        """Draws the view."""
        ended = view.counts.done + view.counts.failed
        self._bar.update(
            self._task,
            description=view.state,
            completed=ended,
            total=view.counts.requests if view.intake_ended else None,
            figures=", ".join(figures(view)),
        )
        self._bar.refresh()

    def close(self) -> None:
        """Leaves the last view on the screen."""
        self._bar.stop()


def figures(view: RunView) -> list[str]:
    """What is worth saying of a view, each part a few words."""
    counts = view.counts
    ended = counts.done + counts.failed
    parts = [f"{counts.done:,}/{counts.requests:,}{'' if view.intake_ended else '+'} requests"]
    if counts.failed:
        parts.append(f"{counts.failed:,} failed")
    if view.computed > ended:
        parts.append(f"{view.computed:,} rows")  # a long document is many of them
    tps = view.prompt_tps if view.embeds else view.output_tps
    if tps > 0:
        parts.append(f"{tps:,.0f} tok/s")
    elif view.prompt_tps > 0:
        parts.append(f"reading {view.prompt_tps:,.0f} tok/s")
    if counts.open and tps > 0 and view.left_s >= LEAST_LEFT_S:
        parts.append(f"about {duration(view.left_s)} left")
    if view.batch:
        parts.append(f"{counted(view.batch, 'row')} of the batch left")
    return parts


def duration(seconds: float) -> str:
    """`1:05`, `2:03:00`, `3 d 4 h`."""
    whole = max(round(seconds), 0)
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    if hours >= 48:
        return f"{hours // 24} d {hours % 24} h"
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
