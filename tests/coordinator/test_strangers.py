"""Who has not proved itself holds few places at the gate; its words and the broker's answer tell who has."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.joining.strangers import LOGIN_BYTES, Limits, Login, Strangers, source
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


def command(*words: str) -> bytes:
    """As client libraries write it."""
    return f"*{len(words)}\r\n".encode() + b"".join(f"${len(word)}\r\n{word}\r\n".encode() for word in words)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 14, 15, 1000])
@pytest.mark.parametrize("name", ["AUTH", "HELLO", "hello"])
def test_a_login_is_known_however_it_is_cut_and_goes_on_whole(name: str, size: int) -> None:
    login, data = Login(), command(name, "join", "secret words")
    pieces = [login.say(data[i : i + size]) for i in range(0, len(data), size)]
    assert b"".join(piece or b"" for piece in pieces) == data
    assert login.accepted(b"+OK\r\n")


@pytest.mark.parametrize(
    "said",
    [
        command("QUIT") + command("AUTH", "join", "x"),
        b"QUIT\r\n" + command("AUTH", "join", "x"),
        b"*0\r\n" + command("AUTH", "join", "x"),
        b"\r\n" + command("AUTH", "join", "x"),
        command("AUTHOR", "join", "x"),
        command("RESET", "padding"),
        b"AUTH join secret words\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    ],
)
def test_nothing_else_goes_on_whole_or_byte_by_byte(said: bytes) -> None:
    """The OK that the broker answers to QUIT was taken for a login."""
    whole, cut = Login(), Login()
    assert whole.say(said) is None
    assert [cut.say(said[i : i + 1]) for i in range(15)] == [b""] * 14 + [None]
    for login in (whole, cut, Login()):
        assert not login.accepted(b"+OK\r\n"), "it has said no login"


def test_errors_accept_nobody() -> None:
    login = Login()
    login.say(command("AUTH", "join", "x"))
    for answer in (
        b"-WRONGPASS invalid\r\n",
        b"-ERR max number of clients reached\r\n",
        b"-",
        b"$2\r\nOK\r\n",
        b"\r\n+OK",
    ):
        assert not login.accepted(answer)


def test_a_stranger_may_say_little() -> None:
    login = Login()
    beginning = command("AUTH", "join", "x")
    assert login.say(beginning) == beginning
    assert login.say(bytes(LOGIN_BYTES - len(beginning))) is not None
    assert login.say(b"x") is None
    assert Login().say(beginning + bytes(LOGIN_BYTES)) is None


# -- the broker's own answers ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedBroker]:
    house = GuardedBroker(StateDir(tmp_path_factory.mktemp("house")))
    yield house
    house.close()


def answered(broker: Path, said: bytes) -> tuple[bytes, bool]:
    """What the broker says to this, and whether one who says it and hears that is let in."""
    with socket.socket(socket.AF_UNIX) as line:
        line.settimeout(5)
        line.connect(str(broker))
        line.sendall(said)
        line.shutdown(socket.SHUT_WR)
        heard = b"".join(iter(lambda: line.recv(4096), b""))
    login = Login()
    return heard, login.say(said) is not None and login.accepted(heard)


@pytest.mark.parametrize(
    "said",
    [
        command("QUIT"),
        command("RESET"),
        command("PING"),
        command("HELLO", "3"),
        command("HELLO", "2"),
        command("HELLO", "9"),
        command("HELLO", "3", "SETNAME", "AUTH"),
        command("HELLO", "3", "AUTH", "join", "wrong"),
        command("HELLO", "3", "AUTH", "default", "") + command("QUIT"),
        command("AUTH", "join", "wrong") + command("QUIT"),
        command("AUTH", "default", ""),
        command("AUTH", "x"),
        b"*3\r\n$4\r\nAUTH\r\n$99999999\r\n",
        b"*3\r\n$4\r\nAUTH\r\n$1\r\nxx\r\n",
        b"*9\r\n$5\r\nHELLO\r\n:1\r\n",
        b"AUTH join wrong\r\nQUIT\r\n",
    ],
)
def test_without_its_password_a_client_is_a_stranger(house: GuardedBroker, said: bytes) -> None:
    heard, let_in = answered(house.broker.socket, said)
    assert heard, "it answers"
    assert not let_in


@pytest.mark.parametrize("words", ["AUTH {0} {1}", "HELLO 3 AUTH {0} {1}", "HELLO 2 AUTH {0} {1} SETNAME x"])
def test_with_it_it_is_let_in(house: GuardedBroker, words: str) -> None:
    password = house.users.admit(house.client, WID, "air", "proof")
    for user, secret in (("join", house.users.accounts.secrets.secret), (WID, password)):
        login = command(*words.format(user, secret).split())
        assert len(login) < LOGIN_BYTES / 2
        assert answered(house.broker.socket, login)[1]
