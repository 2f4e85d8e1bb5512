"""A TCP relay between two ends that can delay, fall silent, cut, and remember what went through."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from contextlib import suppress


class Relay:
    """Listens on 127.0.0.1 and passes bytes to `target`, (host, port) or a unix socket's path; a context manager."""

    def __init__(self, target: tuple[str, int] | str) -> None:
        self._target = target
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="relay", daemon=True)
        self._ready = threading.Event()
        self._open: set[asyncio.StreamWriter] = set()
        self._flowing = asyncio.Event()
        self.port = 0
        #: seconds that each piece waits
        self.delay_s = 0.0
        #: what the client sent and what it was sent, all connections together
        self.sent = bytearray()
        self.received = bytearray()
        #: connections ever accepted
        self.accepted = 0

    def __enter__(self) -> Relay:
        self._thread.start()
        assert self._ready.wait(5), "the relay did not start"
        return self

    def __exit__(self, *_: object) -> None:
        self.speak()
        self.cut()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)

    def silence(self) -> None:
        """Passes nothing on from now, and closes nothing: half-open, as when a cable is pulled."""
        self._loop.call_soon_threadsafe(self._flowing.clear)

    def speak(self) -> None:
        """Passes everything on again, also what came meanwhile."""
        self._loop.call_soon_threadsafe(self._flowing.set)

    def cut(self) -> None:
        """Breaks every connection; new ones are accepted."""
        done = threading.Event()

        def abort() -> None:
            for writer in list(self._open):
                opened = writer.get_extra_info("socket")
                if opened.family != socket.AF_UNIX:
                    opened.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset
                writer.transport.abort()
            done.set()

        self._loop.call_soon_threadsafe(abort)
        done.wait(5)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.port = server.sockets[0].getsockname()[1]
        self._flowing.set()
        self._ready.set()
        self._loop.run_forever()
        server.close()
        if tasks := asyncio.all_tasks(self._loop):
            self._loop.run_until_complete(asyncio.wait(tasks, timeout=5))
        self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        try:
            if isinstance(self._target, str):
                far_reader, far_writer = await asyncio.open_unix_connection(self._target)
            else:
                far_reader, far_writer = await asyncio.open_connection(*self._target)
        except OSError:
            writer.transport.abort()
            return
        self._open |= {writer, far_writer}
        try:
            await asyncio.gather(
                self._pass(reader, far_writer, self.sent), self._pass(far_reader, writer, self.received)
            )
        finally:
            self._open -= {writer, far_writer}
            writer.close()
            far_writer.close()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, record: bytearray) -> None:
        with suppress(OSError):
            while piece := await reader.read(1 << 16):
                record += piece
                if self.delay_s:
                    await asyncio.sleep(self.delay_s)
                await self._flowing.wait()
                writer.write(piece)
                await writer.drain()
            writer.write_eof()
