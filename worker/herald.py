"""Tells a person how a joined worker fares: a line for each change."""

from __future__ import annotations

import contextlib
import json
import queue
import threading
import time
from collections.abc import Callable

from fleet.messages import Beat, WorkerState

#: How long `close` waits for the last lines to be written, seconds.
_CLOSE_S = 1.0


class Herald:
    """Hears the heartbeat, see `worker.heartbeat.Listener`. Writes on a thread of its own: a terminal that was stopped
    must not stop the lease."""

    def __init__(self, write: Callable[[str], object], *, as_json: bool = False) -> None:
        self._write = write
        self._as_json = as_json
        self._last: tuple[WorkerState, str] | None = None
        self._away = False
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="herald", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Writes what is left, unless nobody reads it."""
        self._lines.put(None)
        self._thread.join(_CLOSE_S)

    def say(self, event: str, text: str, **more: str) -> None:
        """One line: the text for people, or the event with its fields as JSON."""
        if self._as_json:
            self._lines.put(json.dumps({"at": round(time.time(), 3), "event": event, **more}))
        else:
            self._lines.put(f"{time.strftime('%H:%M:%S')} {text}")

    def told(self, beat: Beat) -> None:
        """The coordinator's broker has this beat."""
        if self._away:
            self._away = False
            self.say("back", "the coordinator is back")
        now = (beat.state, beat.note)
        if now != self._last:
            self._last = now
            text = f"{beat.state}: {beat.note}" if beat.note else str(beat.state)
            self.say("state", text, state=str(beat.state), note=beat.note)

    def away(self) -> None:
        """The broker cannot be reached."""
        self._away = True
        self.say("away", "the coordinator cannot be reached: trying again until it can")

    def _run(self) -> None:
        while (line := self._lines.get()) is not None:
            with contextlib.suppress(OSError):  # a terminal that is gone; the log tells it too
                self._write(line)
