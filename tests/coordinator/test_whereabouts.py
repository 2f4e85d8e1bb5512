"""Which fleet a command asks."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from coordinator.client.whereabouts import add_place_flags, find_place, place_or_record, the_place
from coordinator.control.running import Running
from fleet.address import Address
from fleet.config import StateDir
from fleet.credentials import Credentials
from fleet.errors import AuthError, NoCoordinatorError
from fleet.token import Token, new_secret


def token() -> Token:
    return Token(fingerprint=b"f" * 32, secret=new_secret(), key=new_secret())


OURS, KEPT, GIVEN = token(), token(), token()


@pytest.fixture
def home(tmp_path: Path) -> StateDir:
    return StateDir(tmp_path / "state")


def flags(home: StateDir, *given: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_place_flags(parser, record=True)
    return parser.parse_args([*given, "--state-dir", str(home.root)])


def up(home: StateDir) -> None:
    Running.here(port=7634, plain_port=7635, token=OURS.format()).keep(home)


def joined(home: StateDir, *, user: str = "", password: str = "") -> None:
    Credentials(
        token=KEPT.format(),
        certificate="",
        addresses=("studio:7633", "10.0.0.5:7633"),
        api_port=7999,
        coordinator="studio",
        user=user,
        password=password,
    ).keep(home)


def test_a_mac_that_belongs_to_no_fleet_has_its_own_record(home: StateDir) -> None:
    assert find_place(flags(home), {}) is None
    assert place_or_record(flags(home)) is None
    with pytest.raises(NoCoordinatorError, match=r"fleet up.*fleet join.*--coordinator.*FLEET_TOKEN"):
        the_place(flags(home))


def test_a_running_coordinator_comes_before_the_fleet_that_was_joined(home: StateDir) -> None:
    joined(home)
    found = find_place(flags(home), {})
    assert found is not None
    assert found.addresses == (Address("studio", 7999), Address("10.0.0.5", 7999))
    assert (found.token, found.plain) == (KEPT, False)
    up(home)
    found = find_place(flags(home), {})
    assert found is not None
    assert (found.addresses, found.token, found.plain) == ((Address("127.0.0.1", 7635),), OURS, True)


def test_what_is_said_comes_first_the_flag_before_the_environment(home: StateDir) -> None:
    joined(home)
    up(home)
    said = {"FLEET_COORDINATOR": "mini", "FLEET_TOKEN": GIVEN.format(Address("other", 9000))}
    found = find_place(flags(home, "--coordinator", "air:8000"), said)
    assert found is not None
    assert (found.addresses, found.token) == ((Address("air", 8001),), GIVEN)
    found = find_place(flags(home), said)
    assert found is not None
    assert found.addresses == (Address("mini", 7634),)
    found = find_place(flags(home), {"FLEET_TOKEN": said["FLEET_TOKEN"]})
    assert found is not None
    assert found.addresses == (Address("other", 9001),)


def test_an_address_alone_takes_the_token_that_this_mac_keeps(home: StateDir) -> None:
    with pytest.raises(AuthError, match="set FLEET_TOKEN"):
        find_place(flags(home, "--coordinator", "studio"), {})
    joined(home)
    found = find_place(flags(home, "--coordinator", "studio"), {})
    assert found is not None
    assert (found.addresses, found.token) == ((Address("studio", 7999),), KEPT)


def test_a_mac_that_joined_asks_with_its_own_key_unless_it_is_given_a_token(home: StateDir) -> None:
    joined(home, user="0123456789ab", password="sesame")
    for said in ([], ["--coordinator", "studio"]):
        found = find_place(flags(home, *said), {})
        assert found is not None
        assert found.key == "0123456789ab.sesame"
        assert "sesame" not in repr(found)
        found = find_place(flags(home, *said), {"FLEET_TOKEN": GIVEN.format()})
        assert found is not None
        assert found.key == GIVEN.key


def test_a_token_alone_serves_the_fleet_that_was_joined(home: StateDir) -> None:
    joined(home)
    found = find_place(flags(home), {"FLEET_TOKEN": GIVEN.format()})
    assert found is not None
    assert found.token == GIVEN


def test_a_token_alone_is_looked_for_on_the_network(home: StateDir) -> None:
    asked: list[bytes] = []

    def search(fingerprint: bytes) -> tuple[Address, ...]:
        asked.append(fingerprint)
        return (Address("10.0.0.9", 7999),)

    found = find_place(flags(home), {"FLEET_TOKEN": GIVEN.format()}, search)
    assert found is not None
    assert (found.addresses, found.key, asked) == ((Address("10.0.0.9", 7999),), GIVEN.key, [GIVEN.fingerprint])
    joined(home)
    other = Token(fingerprint=b"o" * 32, secret=new_secret(), key=new_secret())
    found = find_place(flags(home), {"FLEET_TOKEN": other.format()}, search)
    assert found is not None
    assert found.addresses == (Address("10.0.0.9", 7999),), "the fleet that was joined is another"
    with pytest.raises(NoCoordinatorError, match=r"answers on the local network.*--coordinator.*TOKEN@HOST:PORT"):
        find_place(flags(home), {"FLEET_TOKEN": other.format()}, lambda _: ())


def test_local_asks_no_fleet(home: StateDir) -> None:
    joined(home)
    assert place_or_record(flags(home, "--local")) is None
    found = place_or_record(flags(home))
    assert found is not None
    assert "--local" in found.hint


def test_a_coordinator_that_ended_without_a_word_is_none(home: StateDir) -> None:
    up(home)
    running = Running.of(home)
    assert running is not None
    assert "token=" not in repr(running)
    Running(pid=running.pid, started="another time", port=1, plain_port=2, token="").keep(home)
    assert Running.of(home) is None
    Running.forget(home)
    Running.forget(home)
    assert list(home.root.iterdir()) == []
