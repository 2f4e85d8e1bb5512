"""The server: on every address of the machine, in TLS 1.3 alone, gone when it is stopped."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import ifaddr
import pytest

from coordinator.api.app import build_app
from coordinator.api.patience import Patience
from coordinator.api.server import EVERYWHERE, ApiServer, ServerError
from coordinator.client.fleet_client import FleetClient
from coordinator.client.whereabouts import Place
from coordinator.control.front_desk import FrontDesk
from coordinator.joining.certificate import Certificate
from fleet.address import Address
from fleet.config import StateDir
from fleet.errors import AuthError, NoCoordinatorError, UsageError
from fleet.token import Token, new_secret


@pytest.fixture
def state(tmp_path: Path) -> StateDir:
    state = StateDir(tmp_path)
    state.make()
    return state


@pytest.fixture
def certificate(state: StateDir) -> Certificate:
    return Certificate.of(state)


@pytest.fixture
def token(certificate: Certificate) -> Token:
    return Token(fingerprint=certificate.fingerprint, secret=new_secret(), key=new_secret())


@pytest.fixture
def server(state: StateDir, certificate: Certificate, token: Token) -> Iterator[ApiServer]:
    made = ApiServer(build_app(FrontDesk(), state, token.key), port=0, hosts=EVERYWHERE, certificate=certificate)
    made.start()
    yield made
    made.stop()


def link_local() -> list[str]:
    """This machine's IPv6 addresses that mean something on one interface only, with it."""
    return [
        f"{ip.ip[0]}%{adapter.nice_name}"
        for adapter in ifaddr.get_adapters()
        for ip in adapter.ips
        if isinstance(ip.ip, tuple) and ip.ip[0].startswith("fe80:")
    ]


def files(token: Token, *places: Address) -> object:
    with FleetClient.reach(Place(addresses=places, token=token)) as client:
        return client.get("/v1/files")["data"]


def test_every_address_of_the_machine_answers(server: ApiServer, token: Token) -> None:
    hosts = ["127.0.0.1", "localhost", *(["::1"] if socket.has_ipv6 else []), *link_local()[:1]]
    for host in hosts:
        assert files(token, Address(host, server.port)) == []


def test_an_address_that_leads_nowhere_is_passed_over(server: ApiServer, token: Token) -> None:
    assert files(token, Address("127.0.0.1", 1), Address("127.0.0.1", server.port)) == []


def test_an_older_tls_is_refused(server: ApiServer) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with (
        socket.create_connection(("127.0.0.1", server.port), 5) as plain,
        pytest.raises((ssl.SSLError, ConnectionError)),
    ):
        context.wrap_socket(plain)


def test_plain_http_is_for_loopback_only(state: StateDir) -> None:
    with pytest.raises(ValueError, match="plain HTTP would tell the key to the network"):
        ApiServer(build_app(FrontDesk(), state, "key"), port=0, hosts=EVERYWHERE)


def test_a_port_that_is_taken_is_said(state: StateDir, server: ApiServer) -> None:
    with pytest.raises(ServerError, match=rf"port {server.port} cannot be opened .* choose another with --port"):
        ApiServer(build_app(FrontDesk(), state, "key"), port=server.port)


def test_a_port_beyond_the_last_is_said(state: StateDir) -> None:
    with pytest.raises(ServerError, match="there is no port 65,536"):
        ApiServer(build_app(FrontDesk(), state, "key"), port=65_536)


def test_a_stopped_server_is_gone_with_its_threads(server: ApiServer, token: Token) -> None:
    server.stop()
    with pytest.raises(NoCoordinatorError, match="nothing listens there"):
        files(token, Address("127.0.0.1", server.port))
    assert not [thread for thread in threading.enumerate() if thread.name == f"api-{server.port}"]


def test_an_impostor_hears_nothing_but_tls(state: StateDir, tmp_path: Path, token: Token) -> None:
    other = Certificate.of(StateDir(tmp_path / "other"))
    impostor = ApiServer(build_app(FrontDesk(), state, "key"), port=0, certificate=other)
    impostor.start()
    try:
        with pytest.raises(AuthError, match="whose certificate is not the token's: nothing was sent there"):
            files(token, Address("127.0.0.1", impostor.port))
    finally:
        impostor.stop()


def test_a_coordinator_that_goes_away_is_told_as_that(server: ApiServer, token: Token) -> None:
    with FleetClient.reach(Place(addresses=(Address("127.0.0.1", server.port),), token=token)) as client:
        with pytest.raises(UsageError, match="there is no file x"):
            client.get("/v1/files/x")
        server.stop()
        with pytest.raises(NoCoordinatorError, match="does not answer"):
            client.get("/v1/files")


def test_strangers_who_ask_nothing_do_not_use_the_connections_up(
    server: ApiServer, token: Token, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few hundred connections that stood open without a key kept every command of other Macs out."""
    monkeypatch.setattr(Patience, "head_s", 0.3)
    context = ssl._create_unverified_context()
    ways = (b"", b"GET /v1/fi", b"POST /v1/files HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n")
    for said in ways:
        with context.wrap_socket(socket.create_connection(("127.0.0.1", server.port), 5)) as stranger:
            stranger.sendall(said)
            ends = time.monotonic() + 5
            with suppress(OSError):
                while stranger.recv(4096):  # a refusal may come first
                    stranger.sendall(b"x")
                    assert time.monotonic() < ends
            assert time.monotonic() < ends
    assert files(token, Address("127.0.0.1", server.port)) == []


def test_a_request_may_take_longer_than_its_head(
    server: ApiServer, token: Token, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Patience, "head_s", 0.1)
    head = f"POST /v1/batches HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token.key}\r\nContent-Length: 4\r\n\r\n"
    context = ssl._create_unverified_context()
    with context.wrap_socket(socket.create_connection(("127.0.0.1", server.port), 5)) as client:
        client.sendall(head.encode())
        for byte in (b"{", b" ", b" ", b"}"):
            time.sleep(0.08)
            client.sendall(byte)
        assert client.recv(4096).startswith(b"HTTP/1.1 400")
