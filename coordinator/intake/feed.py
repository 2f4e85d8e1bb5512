"""Intake in a thread of its own, a few chunks ahead of the controller: dispatch overlaps intake."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator

from coordinator.records import NewRequest

#: Chunks prepared ahead; bounds memory.
AHEAD = 4
_END = object()


class Feed:
    """Pulls chunks from intake; `poll` hands them over, and raises what intake raised."""

    def __init__(self, chunks: Iterator[list[NewRequest]]) -> None:
        self._chunks = chunks
        self._queue: queue.Queue[object] = queue.Queue(AHEAD)
        self._closed = threading.Event()
        #: True once every chunk was handed over
        self.ended = False
        self._thread = threading.Thread(target=self._pull, name="intake", daemon=True)
        self._thread.start()

    def poll(self) -> list[NewRequest] | None:
        """The next chunk, None while there is none (yet)."""
        if self.ended:
            return None
        try:
            item = self._queue.get_nowait()
        except queue.Empty:
            return None
        if item is _END:
            self.ended = True
            return None
        if isinstance(item, BaseException):
            self.ended = True
            raise item
        assert isinstance(item, list)
        return item

    def close(self) -> None:
        """Stops pulling; what is prepared and not polled is dropped."""
        self._closed.set()

    def _pull(self) -> None:
        try:
            for chunk in self._chunks:
                if not self._put(chunk):
                    return
        except BaseException as error:  # whatever it is, it belongs to the controller's thread
            self._put(error)
        else:
            self._put(_END)

    def _put(self, item: object) -> bool:
        while not self._closed.is_set():
            try:
                self._queue.put(item, timeout=0.2)
            except queue.Full:
                continue
            return True
        return False
