"""How long the API waits for a client that has said nothing whole: strangers must not use its connections up."""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol

#: From the first moment to the end of a request's head, seconds; so long, too, the rest of a refused one is read.
HEAD_S = 10.0


class Patience(H11Protocol):
    """HTTP/1.1 that hangs up on whoever keeps a connection without asking anything, or byte by byte.

    uvicorn's own timeout begins with the first answer, and each byte ends it.
    """

    head_s = HEAD_S
    _alarm: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """The time for the first request begins."""
        super().connection_made(transport)
        self._look()

    def data_received(self, data: bytes) -> None:
        """Something came; a begun request or an end of one stops or starts the time."""
        super().data_received(data)
        self._look()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is waited for any more."""
        super().connection_lost(exc)
        self._forget()

    def _look(self) -> None:
        if not self._idle():
            self._forget()
        elif self._alarm is None:
            self._alarm = self.loop.call_later(self.head_s, self._hang_up)

    def _idle(self) -> bool:
        """Whether nobody works on a request of this connection."""
        return self.cycle is None or self.cycle.response_complete

    def _forget(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    def _hang_up(self) -> None:
        self._alarm = None
        if self._idle():
            self.transport.abort()
