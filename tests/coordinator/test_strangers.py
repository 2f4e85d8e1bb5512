"""Who has not proved itself holds few places at the gate, and the broker's own answers tell who has."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.joining.strangers import Greeting, Limits, Strangers, source
from fleet.config import StateDir
from tests.guarded_broker import GuardedBroker

WID = "0123456789ab"


def test_a_newcomer_takes_the_place_of_the_oldest_of_its_address() -> None:
    strangers: Strangers[int] = Strangers(Limits(most=10, most_of_one=3))
    assert [strangers.add(n, "10.0.0.1") for n in range(5)] == [None, None, None, 0, 1]
    assert strangers.add(9, "10.0.0.2") is None
    strangers.discard(2)
    assert strangers.add(5, "10.0.0.1") is None, "a place is free again"
    assert len(strangers) == 4


def test_when_all_places_are_taken_the_address_with_most_gives_one_up() -> None:
    strangers: Strangers[str] = Strangers(Limits(most=5, most_of_one=4))
    for n in range(4):
        strangers.add(f"crowd {n}", "10.0.0.1")
    assert strangers.add("quiet", "10.0.0.2") is None
    assert strangers.add("newcomer", "10.0.0.3") == "crowd 0"
    assert strangers.add("another", "10.0.0.4") == "crowd 1"
    assert len(strangers) == 5


def test_one_that_was_never_there_may_be_forgotten() -> None:
    strangers: Strangers[int] = Strangers(Limits())
    strangers.discard(1)
    assert len(strangers) == 0


def test_a_network_of_ipv6_is_one_address() -> None:
    assert source("10.0.0.1") != source("10.0.0.2")
    assert source("2001:db8::1") == source("2001:db8::ffff:1") != source("2001:db8:0:1::1")
    assert source("fe80::1%eth0") == source("fe80::2")


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_answers_are_understood_however_they_are_cut(size: int) -> None:
    data = b"-NOAUTH Authentication required.\r\n+RESET\r\n-ERR +OK is no command\r\n"
    pieces = [data[i : i + size] for i in range(0, len(data), size)]
    greeting = Greeting()
    assert not any(greeting.lets_in(piece) for piece in pieces)
    assert [greeting.lets_in(piece) for piece in (b"+O", b"K\r", b"\n")] == [False, False, True]


def test_a_long_answer_takes_no_memory() -> None:
    greeting = Greeting()
    for _ in range(100):
        assert not greeting.lets_in(b"-" + b"x" * 5000)
    assert len(greeting._rest) < 5100
    assert not greeting.lets_in(b"\r\n")


# -- the broker's own answers ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedBroker]:
    house = GuardedBroker(StateDir(tmp_path_factory.mktemp("house")))
    yield house
    house.close()


def answered(broker: Path, *lines: str) -> tuple[bytes, bool]:
    """What the broker says to these commands, and whether one of the answers lets in."""
    with socket.socket(socket.AF_UNIX) as line:
        line.settimeout(5)
        line.connect(str(broker))
        line.sendall("".join(f"{text}\r\n" for text in lines).encode())
        line.shutdown(socket.SHUT_WR)
        said = b"".join(iter(lambda: line.recv(4096), b""))
    return said, Greeting().lets_in(said)


@pytest.mark.parametrize(
    "command",
    [
        "PING",
        "GET x",
        "HELLO 3",
        "HELLO 2",
        "RESET",
        "AUTH join wrong",
        "NONSENSE +OK",
        "CLIENT LIST",
        "MULTI",
        "QUIT x y",
    ],
)
def test_without_its_password_a_client_is_a_stranger(house: GuardedBroker, command: str) -> None:
    said, let_in = answered(house.broker.socket, command)
    assert said, "it answers"
    assert let_in is (command.startswith("QUIT")), "whoever quits is gone at once"


@pytest.mark.parametrize("command", ["AUTH {0} {1}", "HELLO 3 AUTH {0} {1}", "HELLO 2 AUTH {0} {1}"])
def test_with_it_it_is_let_in(house: GuardedBroker, command: str) -> None:
    password = house.users.admit(house.client, WID, "air", "proof")
    for user, secret in (("join", house.users.accounts.secrets.secret), (WID, password)):
        said, let_in = answered(house.broker.socket, "PING", command.format(user, secret))
        assert said.startswith(b"-NOAUTH")
        assert let_in
