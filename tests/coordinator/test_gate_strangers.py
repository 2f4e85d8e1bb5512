"""Sockets that say nothing do not shut the gate: a few hundred of them, at small limits."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.joining.certificate import Certificate
from coordinator.joining.gatehouse import Gatehouse, _context
from coordinator.joining.strangers import LOGIN_BYTES, Limits
from fleet import pin
from fleet.config import StateDir
from tests.runner import wait_until

LIMITS = Limits(most=60, most_of_one=40, patience_s=60.0, most_let_in=50)
LOGIN, WRONG = (b"*2\r\n$4\r\nAUTH\r\n$1\r\n" + word + b"\r\n" for word in (b"x", b"y"))
QUITS = (b"QUIT\r\n", b"*1\r\n$4\r\nQUIT\r\n")
OK, REFUSED = b"+OK\r\n", b"-WRONGPASS invalid username-password pair or user is disabled.\r\n"


class OpenGate:
    """A gatehouse in a thread of this process, in front of a broker that knows one password."""

    def __init__(self, folder: Path, limits: Limits) -> None:
        self._path = str(folder / "broker.sock")
        self.certificate = Certificate.of(StateDir(folder))
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=500)
        self._trust = pin.context(self.certificate.path.read_text())
        self._ended, self._up = threading.Event(), threading.Event()
        self._sockets: list[socket.socket] = []
        self._limits = limits
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)
        self._thread.start()
        assert self._up.wait(5)

    async def _serve(self) -> None:
        context = _context(str(self.certificate.path), str(self.certificate.key_path))
        self.loop = asyncio.get_running_loop()
        self.house = Gatehouse(self._path, context, self._limits)
        broker = await self.loop.create_unix_server(Broker, self._path)
        task = asyncio.create_task(self.house.serve(self._listener))
        self._up.set()
        while not self._ended.is_set():
            await asyncio.sleep(0.02)
        task.cancel()
        broker.close()
        await asyncio.sleep(0.05)  # for what was closed last

    def plain(self, source: str = "127.0.0.1") -> socket.socket:
        """A connection that has not said a word."""
        made = socket.create_connection(self._listener.getsockname(), 5, source_address=(source, 0))
        self._sockets.append(made)
        return made

    def call(self, source: str = "127.0.0.1") -> ssl.SSLSocket:
        """One with TLS."""
        secured = self._trust.wrap_socket(self.plain(source))
        self._sockets.append(secured)
        return secured

    def newcomer(self, source: str = "127.0.0.1") -> ssl.SSLSocket:
        """One that says its password, and is let in."""
        made = self.call(source)
        made.sendall(LOGIN)
        assert made.recv(100) == OK
        return made

    @property
    def strangers(self) -> int:
        return len(self.house._strangers)

    def close(self) -> None:
        for opened in self._sockets:
            opened.close()
        wait_until(lambda: not self.strangers and not self.house._welcome, within_s=30, story="all are gone")
        self._ended.set()
        self._thread.join(5)
        self._listener.close()


class Broker(asyncio.Protocol):
    """Lets in who knows its password, and, as the real one does, has an OK for who quits."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._transport.write(OK if data.startswith((LOGIN, *QUITS)) else REFUSED)


def ended(connection: socket.socket) -> bool:
    """Whether the other side has ended it."""
    connection.settimeout(0.0)
    try:
        return connection.recv(100) == b""
    except (BlockingIOError, ssl.SSLWantReadError):
        return False
    except OSError:
        return True


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[OpenGate]:
    gate = OpenGate(tmp_path, LIMITS)
    yield gate
    gate.close()


@pytest.fixture
def hasty(tmp_path: Path) -> Iterator[OpenGate]:
    gate = OpenGate(tmp_path, Limits(most=60, most_of_one=40, patience_s=2.0))
    yield gate
    gate.close()


@pytest.mark.parametrize("tls", [True, False])
def test_hundreds_of_idle_connections_of_one_address_let_a_newcomer_in_at_once(gate: OpenGate, *, tls: bool) -> None:
    """2,000 of them filled the gate until they went by themselves, which idle ones never do."""
    early = gate.newcomer()
    idle = [gate.call() if tls else gate.plain() for _ in range(200)]
    began = time.monotonic()
    late = gate.newcomer()
    assert time.monotonic() - began < LIMITS.patience_s / 2
    wait_until(lambda: sum(map(ended, idle)) >= 200 - LIMITS.most_of_one, within_s=30, story="the oldest make way")
    assert gate.strangers <= LIMITS.most_of_one
    for welcome in (early, late):
        welcome.sendall(LOGIN)
        assert welcome.recv(100) == OK, "who is let in does not make way"


@pytest.mark.skipif(sys.platform != "linux", reason="127.0.0.2 and so on are addresses of this machine on Linux alone")
def test_a_crowd_from_many_addresses_shuts_nobody_out(gate: OpenGate) -> None:
    for n in range(200):
        gate.call(f"127.0.0.{2 + n % 20}")
    gate.newcomer()
    wait_until(lambda: gate.strangers <= LIMITS.most, within_s=30)
    assert gate.strangers > LIMITS.most_of_one


def test_strangers_are_sent_away_after_a_while_and_who_was_let_in_stays(hasty: OpenGate) -> None:
    welcome = hasty.newcomer()
    silent, idle, slow = hasty.plain(), hasty.call(), hasty.call()
    for n in range(8):
        with contextlib.suppress(OSError):
            slow.sendall(LOGIN[n : n + 1])
        time.sleep(0.3)
    wait_until(lambda: all(map(ended, (silent, idle, slow))), within_s=30, story="strangers are sent away")
    assert hasty.strangers == 0
    welcome.sendall(LOGIN)
    assert welcome.recv(100) == OK


def test_a_stranger_that_goes_by_itself_leaves_nothing_behind(gate: OpenGate) -> None:
    for opened in [*(gate.plain() for _ in range(10)), *(gate.call() for _ in range(10))]:
        opened.close()
    wait_until(lambda: gate.strangers == 0, within_s=30, story="they are forgotten")
    gate.newcomer()


@pytest.mark.parametrize("said", [*QUITS, QUITS[0] * 9, QUITS[1] + LOGIN, b"*0\r\n" + LOGIN])
def test_who_quits_before_it_logs_in_is_not_let_in(gate: OpenGate, said: bytes) -> None:
    """The broker's OK to that was taken for a login: 1,747 files were open and 1 GB was held after eight seconds."""
    quitting = [gate.call() for _ in range(5)]
    for one in quitting:
        one.sendall(said + bytes(15))
    wait_until(lambda: all(map(ended, quitting)), within_s=30, story="they are sent away")
    wait_until(lambda: gate.strangers == 0, within_s=30, story="all are forgotten")
    assert not gate.house._welcome


def test_who_is_refused_hears_why_and_is_sent_away(gate: OpenGate) -> None:
    """It was a stranger on, and would be one with the right password too, once only the first answer counts."""
    guessing = gate.call()
    guessing.sendall(WRONG)
    assert guessing.recv(1000) == REFUSED
    wait_until(lambda: ended(guessing), within_s=30, story="it is sent away")
    guessing.close()
    wait_until(lambda: gate.strangers == 0, within_s=30, story="it is forgotten")
    assert not gate.house._welcome


def test_who_says_too_much_before_it_is_let_in_is_sent_away(gate: OpenGate) -> None:
    """The broker is slow to answer one that pours: the gate holds none of it."""
    pouring = gate.call()
    with contextlib.suppress(OSError):
        pouring.sendall(LOGIN + bytes(LOGIN_BYTES))
    wait_until(lambda: ended(pouring), within_s=30, story="it is sent away")
    wait_until(lambda: gate.strangers == 0, within_s=30, story="all are forgotten")
    assert not gate.house._welcome


def test_who_says_too_much_and_goes_leaves_no_trouble(gate: OpenGate) -> None:
    """It was ended while TLS read the last of it, which TLS does not bear."""
    troubles: list[object] = []
    gate.loop.call_soon_threadsafe(gate.loop.set_exception_handler, lambda _loop, trouble: troubles.append(trouble))
    for _ in range(20):
        with gate.call() as pouring:
            pouring.sendall(bytes(LOGIN_BYTES))
    wait_until(lambda: gate.strangers == 0, within_s=5, story="all are forgotten")
    assert troubles == []


def test_what_strangers_cause_is_logged_once_a_minute(gate: OpenGate, caplog: pytest.LogCaptureFixture) -> None:
    """A line for each filled the disk at their will."""
    for _ in range(20):
        with gate.plain() as plain, contextlib.suppress(OSError):
            plain.sendall(b"GET / HTTP/1.1\r\n\r\n")
            plain.recv(100)
    wait_until(lambda: gate.strangers == 0, within_s=5, story="all are forgotten")
    assert caplog.text.count("a connection failed") == 1


def test_so_many_are_let_in_and_no_more(gate: OpenGate) -> None:
    """The strangers that had come before the last place was taken were let in as well."""
    waiting = [gate.call() for _ in range(8)]
    for _ in range(LIMITS.most_let_in - 4):
        gate.newcomer()
    for one in waiting:
        one.sendall(LOGIN)
    wait_until(lambda: sum(map(ended, waiting)) == 4, within_s=30, story="four are sent away")
    assert len(gate.house._welcome) == LIMITS.most_let_in
    late = gate.plain()
    wait_until(lambda: ended(late), within_s=30, story="nor is anybody met")


def test_a_flood_is_taken_no_faster_than_its_connections_end(gate: OpenGate) -> None:
    """All that waited were taken in one go, and none of them could end meanwhile."""
    most, held, go_on, enough = 0, threading.Event(), threading.Event(), threading.Event()

    def hold() -> None:
        held.set()
        go_on.wait(10)
        look()

    def look() -> None:
        nonlocal most
        most = max(most, len(asyncio.all_tasks(gate.loop)))
        if not enough.is_set():
            gate.loop.call_soon(look)

    gate.loop.call_soon_threadsafe(hold)
    assert held.wait(5)
    flood = [gate.plain() for _ in range(300)]
    go_on.set()
    wait_until(lambda: sum(map(ended, flood)) >= 300 - LIMITS.most_of_one, within_s=30, story="all were taken")
    enough.set()
    assert LIMITS.most_of_one <= most < LIMITS.most_of_one + 20
