"""In which order a coordinator is looked for, and what is said when there is none."""

import pytest

from coordinator.joining.certificate import Certificate
from fleet.address import Address
from fleet.config import StateDir
from fleet.errors import AuthError, NoCoordinatorError
from fleet.token import Token
from tests.impostor import Impostor
from tests.ports import free_port
from worker.discover import LocalNetworkError
from worker.finding import find


@pytest.fixture
def certificate(tmp_path):
    return Certificate.of(StateDir(tmp_path / "right"))


@pytest.fixture
def token(certificate):
    return Token(fingerprint=certificate.fingerprint, secret="ab" * 16, key="cd" * 16)


@pytest.fixture
def right(certificate):
    server = Impostor(certificate)
    yield Address("127.0.0.1", server.port)
    server.close()


@pytest.fixture
def wrong(tmp_path):
    server = Impostor(Certificate.of(StateDir(tmp_path / "wrong")))
    yield Address("127.0.0.1", server.port)
    server.close()
    assert server.received == b""


@pytest.fixture
def nobody():
    return Address("127.0.0.1", free_port())


def nothing(_fingerprint):
    return []


def never(_fingerprint):
    raise AssertionError("the network was asked")


def test_a_given_address_is_the_only_one_tried(token, right, nobody):
    assert find(token, right, [nobody], never).addresses == (right,)
    with pytest.raises(NoCoordinatorError):
        find(token, nobody, [right], never)


def test_the_last_good_address_comes_before_the_network(token, right, nobody):
    assert find(token, None, [nobody, right], never).addresses == (right, nobody)


def test_the_network_is_asked_last_and_for_this_fleet(token, right, nobody):
    asked = []

    def look(fingerprint):
        asked.append(fingerprint)
        return [nobody, right]

    assert find(token, None, [nobody], look).addresses == (right,)
    assert asked == [token.fingerprint]


def test_an_impostor_among_the_addresses_is_passed_by(token, right, wrong):
    assert find(token, None, [wrong, right], never).addresses == (right, wrong)
    assert find(token, None, [], lambda _: [wrong, right]).addresses == (right, wrong)


def test_only_impostors_are_an_error_of_trust(token, wrong):
    with pytest.raises(
        AuthError, match=r"another coordinator.*nothing was sent.*made anew, `fleet join TOKEN`.*fleet token"
    ):
        find(token, wrong, [], never)
    with pytest.raises(AuthError):
        find(token, None, [], lambda _: [wrong])


def test_a_known_address_that_another_has_now_does_not_keep_from_looking_around(token, wrong, right):
    assert find(token, None, [wrong], lambda _: [right]).addresses[0] == right


def test_nobody_anywhere_is_told_with_what_was_tried_and_every_way_to_say_where(token, nobody):
    with pytest.raises(NoCoordinatorError) as caught:
        find(token, None, [nobody], nothing)
    told = str(caught.value)
    for part in (
        str(nobody),
        "local network",
        "fleet up",
        "--coordinator HOST:PORT",
        "FLEET_COORDINATOR",
        "@HOST:PORT",
    ):
        assert part in told


def test_a_network_that_macos_forbids_is_told_as_that(token):
    def forbidden(_fingerprint):
        raise LocalNetworkError("Local Network access is blocked by macOS")

    with pytest.raises(NoCoordinatorError, match="blocked by macOS"):
        find(token, None, [], forbidden)
