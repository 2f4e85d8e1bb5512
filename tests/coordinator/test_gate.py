"""The gate: TLS outside, a unix socket inside, bytes passed on as they are."""

import collections
import contextlib
import os
import signal
import socket
import ssl
import subprocess
import threading
import time
from pathlib import Path

import pytest

from coordinator.control.processes import Processes
from coordinator.joining.certificate import Certificate
from coordinator.joining.gate import Gate
from coordinator.joining.sides import KEEPALIVE_S, _keep_alive
from fleet import pin
from fleet.config import StateDir
from fleet.errors import BrokerError
from tests.worker_process import gone, until

MIB = 1 << 20
LOGIN, WELCOME = b"*2\r\n$4\r\nAUTH\r\n$1\r\nx\r\n", b"+OK\r\n"


class Inside:
    """What listens on the unix socket: lets each in, then answers each byte it reads, unless it is told to sleep."""

    def __init__(self, path, answer=lambda data: data):
        self.path = path
        self.answer = answer
        self.awake = threading.Event()
        self.awake.set()
        self.connections = []
        self.ended = 0
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(path))
        self.listener.listen(64)
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            self.connections.append(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection):
        with contextlib.suppress(OSError):
            if connection.recv(len(LOGIN)):
                connection.sendall(WELCOME)
            while self.awake.wait() and (data := connection.recv(65536)):
                connection.sendall(self.answer(data))
        self.ended += 1
        connection.close()

    def close(self):
        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        for connection in self.connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self.path.unlink(missing_ok=True)


class Rig:
    def __init__(self, state):
        state.make()
        self.state = state
        self.path = state.root / "inside.sock"
        self.inside = Inside(self.path)
        self.certificate = Certificate.of(state)
        self.gate = Gate(state, Processes(state), self.path, self.certificate, port=0, local=True)
        self.gate.start()
        self.context = pin.context(self.certificate.path.read_text())
        self.open = []

    def stranger(self, host="127.0.0.1"):
        plain = socket.create_connection((host, self.gate.port), 5)
        self.open.append(self.context.wrap_socket(plain))
        return self.open[-1]

    def call(self, host="127.0.0.1"):
        connection = self.stranger(host)
        connection.sendall(LOGIN)
        assert connection.recv(100) == WELCOME
        return connection

    def log(self):
        return (self.state.logs / "gate.log").read_text()

    def close(self):
        for connection in self.open:
            connection.close()
        self.gate.stop()
        self.inside.close()


@pytest.fixture
def rig(tmp_path):
    rig = Rig(StateDir(tmp_path))
    yield rig
    rig.close()


def read(connection, size):
    data = bytearray()
    while len(data) < size and (piece := connection.recv(65536)):
        data += piece
    return bytes(data)


def resident_bytes(pid):
    """Memory of a process, as `ps` tells it."""
    told = subprocess.run(["ps", "-o", "rss=", "-p", str(pid)], capture_output=True, text=True, check=True)
    return int(told.stdout) * 1024


def settled(count):
    """What `count()` is when it has not changed for a second."""
    before, now = 0, count()
    while not now or before != now:
        time.sleep(1)
        before, now = now, count()
    return now


def send_until_stopped(client):
    """Bytes that were taken before the client's timeout."""
    sent = 0
    with contextlib.suppress(TimeoutError):
        while sent < 256 * MIB:
            sent += client.send(bytes(MIB))
    return sent


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_bytes_come_back_as_they_were_over_ipv4_and_ipv6(rig, host):
    if host == "::1" and not Path("/proc/net/if_inet6").exists() and os.uname().sysname == "Linux":
        pytest.skip("this machine has no IPv6")
    connection = rig.call(host)
    for _ in range(64):  # in turns: a TLS socket of Python 3.11 does not bear two threads
        data = os.urandom(MIB // 8)
        connection.sendall(data)
        assert read(connection, len(data)) == data
    assert connection.version() == "TLSv1.3"


def test_many_clients_do_not_mix(rig):
    clients = [rig.call() for _ in range(40)]
    for number, client in enumerate(clients):
        client.sendall(b"client %d" % number)
    assert [client.recv(100) for client in clients] == [b"client %d" % number for number in range(40)]
    assert len(rig.inside.connections) == 40


def test_a_client_that_goes_ends_its_connection_inside(rig):
    client = rig.call()
    client.sendall(b"x")
    client.recv(1)
    client.close()
    until(lambda: rig.inside.ended == 1)


def test_a_client_that_is_reset_ends_its_connection_inside(rig):
    client = rig.call()
    client.sendall(b"x")
    client.recv(1)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    client.close()
    until(lambda: rig.inside.ended == 1)


def test_what_was_answered_before_the_end_arrives_before_the_end(rig):
    size = 4 * MIB
    asked = threading.Event()
    rig.inside.answer = lambda _: asked.set() or bytes(size)
    client = rig.call()
    client.sendall(b"x")
    assert asked.wait(60)
    time.sleep(0.2)  # for some of the answer to be on its way
    rig.inside.connections[0].shutdown(socket.SHUT_RDWR)
    got = read(client, size)
    assert client.recv(1) == b""
    assert 0 < len(got) <= size


def test_a_broker_that_does_not_read_stops_the_client_and_fills_no_memory(rig):
    rig.inside.awake.clear()
    client = rig.call()
    client.settimeout(1)
    sent = send_until_stopped(client)
    assert 0 < sent < 32 * MIB
    rig.inside.awake.set()


def test_a_client_that_does_not_read_stops_the_broker(rig):
    written = [0]

    def pour(data):
        for _ in range(256):
            rig.inside.connections[0].sendall(bytes(MIB))
            written[0] += MIB
        return data

    rig.inside.answer = pour
    client = rig.call()
    client.sendall(b"x")
    assert 0 < settled(lambda: written[0]) < 32 * MIB
    client.close()
    until(lambda: rig.inside.ended == 1)


def test_a_broker_that_is_away_turns_clients_away_until_it_is_back(rig):
    rig.inside.close()
    away = rig.stranger()
    with contextlib.suppress(ConnectionError, ssl.SSLError):
        assert away.recv(1) == b""
    assert rig.gate.alive()
    assert "the broker is away" in rig.log()
    rig.inside = Inside(rig.path)
    back = rig.call()
    back.sendall(b"x")
    assert back.recv(1) == b"x"


def test_strangers_without_tls_or_with_an_old_one_get_nowhere(rig):
    with socket.create_connection(("127.0.0.1", rig.gate.port), 5) as plain:
        plain.sendall(b"AUTH join secret-words\r\nPING\r\n")
        with contextlib.suppress(ConnectionError):
            assert b"PONG" not in plain.recv(4096)
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    with socket.create_connection(("127.0.0.1", rig.gate.port), 5) as plain, pytest.raises(ssl.SSLError):
        old.wrap_socket(plain)
    assert rig.inside.connections == []
    welcome = rig.call()
    welcome.sendall(b"x")
    assert welcome.recv(1) == b"x"
    assert "secret-words" not in rig.log()
    assert "Traceback" not in rig.log()


def test_a_connection_holds_little_memory(rig):
    """Each held 280 KB, most of it a buffer that was never filled."""
    rig.stranger()
    before = resident_bytes(rig.gate.pid)
    for _ in range(80):
        rig.stranger()
    assert resident_bytes(rig.gate.pid) - before < 80 * 160_000


def test_a_flood_of_broken_handshakes_leaves_little_behind(rig):
    """Python kept the remains of over a thousand of them, 0.1 MB each, until it next looked for cycles."""
    half = b"\x16\x03\x01\x40\x00\x01\x01\xff\x00\x03\x03" + bytes(16000)
    rig.stranger()
    before, kept = resident_bytes(rig.gate.pid), collections.deque(maxlen=150)
    for _ in range(1600):
        kept.append(socket.create_connection(("127.0.0.1", rig.gate.port), 5))
        kept[-1].sendall(half)
        if len(kept) == kept.maxlen:
            kept.popleft().close()
    rig.call()
    assert resident_bytes(rig.gate.pid) - before < 75 * MIB
    for connection in kept:
        connection.close()


def test_clients_that_come_while_the_gate_is_replaced_only_wait(rig):
    first = rig.call()
    os.kill(rig.gate.pid, signal.SIGKILL)
    until(lambda: not rig.gate.alive())
    port, answers = rig.gate.port, []

    def call():
        connection = rig.call()
        connection.sendall(b"x")
        answers.append(connection.recv(1))

    caller = threading.Thread(target=call)
    caller.start()
    time.sleep(0.2)
    rig.gate.restart()
    caller.join(60)
    assert (answers, rig.gate.port) == ([b"x"], port)
    with contextlib.suppress(ConnectionError, ssl.SSLError):
        assert first.recv(1) == b""


def test_it_ends_with_its_parent(rig):
    pid = rig.gate.pid
    rig.gate._child.stdin.close()
    until(lambda: gone(pid) or rig.gate._child.poll() is not None)


def test_a_stopped_gate_listens_no_more(rig):
    port = rig.gate.port
    rig.gate.stop()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), 1)


def test_a_port_that_is_taken_is_told(tmp_path):
    state = StateDir(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        gate = Gate(state, Processes(state), tmp_path / "s", Certificate.of(state), port=port, local=True)
        with pytest.raises(BrokerError, match=f"port {port} cannot be opened.*--port"):
            gate.start()
        gate.stop()


def test_no_secret_is_on_its_command_line(rig):
    rig.call()  # a process just begun may have no command line yet
    words = Path(f"/proc/{rig.gate.pid}/cmdline")
    if not words.exists():
        pytest.skip("no /proc")
    assert b"PRIVATE" not in words.read_bytes()
    assert str(rig.certificate.key_path).encode() in words.read_bytes()


def test_silent_peers_are_asked_by_the_system():
    with socket.socket() as connection:
        _keep_alive(connection)
        assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        if hasattr(socket, "TCP_KEEPIDLE"):
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == KEEPALIVE_S
