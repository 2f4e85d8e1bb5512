"""How far an upload is, on stderr: a bar on a terminal, nothing elsewhere."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import TYPE_CHECKING

from coordinator.client.parcels import Parcel

if TYPE_CHECKING:
    from rich.progress import Progress


class UploadBar:
    """Counts the bytes of one parcel; a context, so that the terminal is left in order."""

    def __init__(self, parcel: Parcel, *, quiet: bool) -> None:
        self.parcel = parcel
        self._bar: Progress | None = None
        if not quiet and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

            name = TextColumn("{task.description}", markup=False)
            columns = (name, BarColumn(), DownloadColumn(), TransferSpeedColumn())
            self._bar = Progress(*columns, console=Console(stderr=True), transient=True)
            self._task = self._bar.add_task(f"sending {parcel.name}", total=parcel.size_bytes)

    def __enter__(self) -> UploadBar:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.stop()

    def sent(self, count: int) -> None:
        """So many bytes more have left."""
        if self._bar is not None:
            self._bar.advance(self._task, count)
