"""Tells a person how a joined worker fares: a line for each change."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

from fleet.messages import Beat, WorkerState


class Herald:
    """Hears the heartbeat; see `worker.heartbeat.Listener`."""

    def __init__(self, write: Callable[[str], object], *, as_json: bool = False) -> None:
        self._write = write
        self._as_json = as_json
        self._last: tuple[WorkerState, str] | None = None
        self._away = False

    def say(self, event: str, text: str, **more: str) -> None:
        """One line: the text for people, or the event with its fields as JSON."""
        if self._as_json:
            self._write(json.dumps({"at": round(time.time(), 3), "event": event, **more}))
        else:
            self._write(f"{time.strftime('%H:%M:%S')} {text}")

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
