"""The pipe between agent and engine: frames of a 4-byte big-endian length and a message of `fleet.codec`."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading

from fleet import codec
from fleet.errors import DecodeError
from fleet.messages import Message

_LENGTH = struct.Struct(">I")


class Link:
    """One end of a socketpair. Any thread may send; one thread receives."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._reader = sock.makefile("rb")
        self._sending = threading.Lock()

    def send(self, message: Message) -> None:
        """Sends `message` whole; OSError (BrokenPipeError, mostly) when the other end is gone."""
        data = codec.encode(message)
        with self._sending:
            self._sock.sendall(_LENGTH.pack(len(data)) + data)

    def receive(self) -> Message | None:
        """The next message, None at end of file; DecodeError when the bytes are none of ours."""
        try:
            head = self._reader.read(_LENGTH.size)
            if len(head) < _LENGTH.size:
                return None
            (length,) = _LENGTH.unpack(head)
            if length > codec.MAX_BYTES:
                raise DecodeError(f"a frame of {length} bytes is over the limit of {codec.MAX_BYTES}")
            data = self._reader.read(length)
        except (OSError, ValueError):  # reset by a peer killed with unread data, or closed here: gone all the same
            return None
        return codec.decode(data) if len(data) == length else None

    def close(self) -> None:
        """Ends the link; the other side, and a `receive` blocked here, meet end of file."""
        with contextlib.suppress(OSError):  # already shut by the other side
            self._sock.shutdown(socket.SHUT_RDWR)
        self._reader.close()  # waits for a `receive` in progress, which meets end of file now
        self._sock.close()
