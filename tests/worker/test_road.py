"""The ways to the coordinator: the first good one is taken, and nobody else is trusted on any of them."""

import socket
import ssl
import threading
import time

import pytest
import redis

from coordinator.joining.certificate import Certificate
from fleet import keys, pin
from fleet.address import Address
from fleet.config import StateDir
from tests.gatekeeper import Gatekeeper
from tests.impostor import Impostor
from tests.ports import free_port
from tests.relay import Relay
from tests.worker_process import until
from worker import road as roads
from worker.road import Road

WID = "0123456789ab"


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    fleet = Gatekeeper(StateDir(tmp_path_factory.mktemp("fleet")))
    yield fleet
    fleet.close()


@pytest.fixture
def pem(fleet):
    return fleet.certificate.path.read_text()


@pytest.fixture
def impostor(tmp_path):
    server = Impostor(Certificate.of(StateDir(tmp_path / "wrong")))
    yield server
    server.close()


@pytest.fixture
def log_in(fleet):
    password = fleet.users.admit(fleet.client, WID, "air", "proof")
    clients = []

    def make(road):
        clients.append(road.client(WID, password))
        return clients[-1]

    yield make
    for client in clients:
        client.close()


@pytest.fixture
def nobody():
    return Address("127.0.0.1", free_port())


def test_a_client_works_over_the_road(fleet, pem, log_in):
    client = log_in(Road(pem, [fleet.address]))
    assert client.get(keys.EPOCH) == fleet.broker.epoch.encode()


def test_addresses_are_tried_in_order_and_the_good_one_comes_first_from_then_on(fleet, pem, log_in, nobody, impostor):
    wrong = Address("127.0.0.1", impostor.port)
    arrived = []
    road = Road(pem, [nobody, wrong, fleet.address], arrived=arrived.append)
    client = log_in(road)
    assert client.ping()
    assert road.addresses == [fleet.address, nobody, wrong]
    assert arrived == [[fleet.address, nobody, wrong]]
    client.connection_pool.disconnect()
    assert client.ping()
    assert len(arrived) == 1
    impostor.close()
    assert (impostor.connections, impostor.received) == (1, b"")


def test_an_impostor_gets_neither_user_nor_password(pem, log_in, impostor):
    client = log_in(Road(pem, [Address("127.0.0.1", impostor.port)]))
    with pytest.raises(redis.ConnectionError):
        client.ping()
    impostor.close()
    assert impostor.connections >= 1
    assert impostor.received == b""


def test_a_certificate_that_the_system_trusts_is_refused_all_the_same(pem, log_in, tmp_path, monkeypatch):
    trusted = Certificate.of(StateDir(tmp_path / "trusted"))
    monkeypatch.setenv("SSL_CERT_FILE", str(trusted.path))
    server = Impostor(trusted)
    system = ssl.create_default_context()
    system.check_hostname = False
    with socket.create_connection(("127.0.0.1", server.port), 5) as plain, system.wrap_socket(plain) as secured:
        secured.sendall(b"hello")  # others would have believed it
    client = log_in(Road(pem, [Address("127.0.0.1", server.port)]))
    with pytest.raises(redis.ConnectionError):
        client.ping()
    server.close()
    assert server.received == b"hello"


def test_an_address_that_takes_connections_and_says_nothing_is_passed_by(fleet, pem, log_in, monkeypatch):
    monkeypatch.setattr(pin, "HANDSHAKE_S", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert log_in(Road(pem, [Address("127.0.0.1", silent.getsockname()[1]), fleet.address])).ping()


def test_the_network_is_searched_when_no_address_is_good_and_what_is_found_is_used(fleet, pem, log_in, nobody):
    searches = []

    def search():
        searches.append(1)
        return [fleet.address]

    client = log_in(Road(pem, [nobody], search=search))
    with pytest.raises(redis.ConnectionError):
        client.ping()
    assert until(lambda: works(client))
    assert searches == [1]


def works(client):
    try:
        return client.ping()
    except redis.ConnectionError:
        return False


def test_searches_neither_overlap_nor_follow_at_once(pem, nobody):
    searches, going = [], threading.Event()

    def search():
        searches.append(1)
        going.wait(5)
        return []

    road = Road(pem, [nobody], search=search)
    for _ in range(5):
        with pytest.raises(OSError, match="refused"):
            road.open()
    assert len(searches) == 1
    going.set()
    time.sleep(0.1)
    with pytest.raises(OSError, match="refused"):
        road.open()
    assert len(searches) == 1


def test_no_more_addresses_are_kept_than_are_worth_trying(pem):
    found = [Address("127.0.0.1", 1 + number) for number in range(40)]
    road = Road(pem, [], search=lambda: found)
    with pytest.raises(OSError, match="no address"):
        road.open()
    until(lambda: len(road.addresses) == roads.MAX_ADDRESSES)


def test_what_goes_over_the_wire_is_tls_and_shows_neither_names_nor_answers(fleet, pem, log_in):
    with Relay(("127.0.0.1", fleet.gate.port)) as relay:
        client = log_in(Road(pem, [Address("127.0.0.1", relay.port)]))
        client.ping()
        client.xadd(keys.results(WID), {"m": "the text of an answer"})
        client.close()
        wire = bytes(relay.sent) + bytes(relay.received)
    assert len(wire) > 500
    assert relay.sent[:2] == b"\x16\x03"  # a TLS handshake
    for word in (b"PING", b"PONG", b"XADD", b"HELLO", b"AUTH", b"fleet:", WID.encode(), b"the text"):
        assert word.lower() not in wire.lower()


def test_a_connection_that_is_cut_comes_back_by_itself(fleet, pem, log_in):
    with Relay(("127.0.0.1", fleet.gate.port)) as relay:
        client = log_in(Road(pem, [Address("127.0.0.1", relay.port)]))
        assert client.ping()
        relay.cut()
        until(lambda: works(client))
        assert relay.accepted == 2
        client.close()


def test_waiting_reads_end_in_time_on_a_road_that_fell_silent(fleet, pem, log_in, monkeypatch):
    monkeypatch.setattr(roads, "REPLY_S", 0.5)
    with Relay(("127.0.0.1", fleet.gate.port)) as relay:
        client = log_in(Road(pem, [Address("127.0.0.1", relay.port)]))
        assert client.ping()
        relay.silence()
        began = time.monotonic()
        with pytest.raises(redis.TimeoutError):
            client.ping()
        assert time.monotonic() - began < 20
        client.connection_pool.disconnect()
