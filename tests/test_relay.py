"""The relay that other tests rely on."""

import socket
import threading
from contextlib import suppress

import pytest

from tests.relay import Relay


@pytest.fixture
def echo():
    """A server that answers with what it gets; its address."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=serve, args=(server,), daemon=True).start()
        yield server.getsockname()


def serve(server):
    while server.fileno() >= 0:
        with suppress(OSError):
            connection, _ = server.accept()
            with connection:
                while piece := connection.recv(1000):
                    connection.sendall(piece)


def test_it_passes_bytes_and_remembers_them(echo):
    with Relay(echo) as relay, socket.create_connection(("127.0.0.1", relay.port), timeout=5) as client:
        client.sendall(b"hello")
        assert client.recv(100) == b"hello"
        client.shutdown(socket.SHUT_WR)
        assert client.recv(100) == b"", "an end is passed on"
        assert bytes(relay.sent) == bytes(relay.received) == b"hello"


def test_it_falls_silent_without_closing_and_speaks_again(echo):
    with Relay(echo) as relay, socket.create_connection(("127.0.0.1", relay.port), timeout=0.2) as client:
        relay.silence()
        client.sendall(b"hello")
        with pytest.raises(TimeoutError):
            client.recv(100)
        relay.speak()
        client.settimeout(5)
        assert client.recv(100) == b"hello"


def test_it_cuts_and_takes_new_connections(echo):
    with Relay(echo) as relay:
        with socket.create_connection(("127.0.0.1", relay.port), timeout=5) as client:
            client.sendall(b"a")
            client.recv(1)
            relay.cut()
            with pytest.raises(ConnectionResetError):
                client.recv(1)
        with socket.create_connection(("127.0.0.1", relay.port), timeout=5) as client:
            client.sendall(b"b")
            assert client.recv(1) == b"b"
        assert relay.accepted == 2
