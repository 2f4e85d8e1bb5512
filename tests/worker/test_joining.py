"""From a token to work, with stand-ins for the network and the supervisor."""

import threading
from types import SimpleNamespace

import pytest

from fleet.address import Address
from fleet.config import StateDir
from fleet.credentials import Credentials
from fleet.errors import AuthError, Exit, NoCoordinatorError
from fleet.presence import JOINED, PRESENT
from fleet.token import Token
from worker import joining
from worker.finding import Met
from worker.herald import Herald
from worker.joining import Joining, Options, is_here

TOKEN = Token(fingerprint=bytes(32), secret="ab" * 16, key="cd" * 16)
STUDIO, LOCAL = Address("192.0.2.1"), Address("127.0.0.1")


class Stage:
    """Stand-ins, and what they were asked."""

    def __init__(self, monkeypatch, state):
        self.state = state
        self.at = STUDIO
        self.trouble = None
        #: exit statuses of the supervisors to come
        self.statuses = [0]
        self.adverts, self.closed, self.finds, self.kept, self.lines = [], [], [], [], []
        monkeypatch.setattr(joining.finding, "find", self.find)
        monkeypatch.setattr(joining, "enrol", self.enrol)
        monkeypatch.setattr(joining, "Advert", self.advert)
        monkeypatch.setattr(joining, "joined_worker", lambda *_: SimpleNamespace(run=lambda: self.statuses.pop(0)))
        monkeypatch.setattr(joining, "VISIBLE_S", 0.0)
        monkeypatch.setattr(joining, "ASK_AGAIN_S", 0.0)

    def find(self, token, given, known):
        self.finds.append((token, given, list(known)))
        if isinstance(self.trouble, NoCoordinatorError):
            raise self.trouble
        return Met(certificate="PEM", addresses=(self.at,))

    def enrol(self, met, token, applicant, kept):
        self.kept.append(kept)
        if self.trouble:
            raise self.trouble
        return Credentials(
            token=token.format(),
            certificate=met.certificate,
            addresses=tuple(map(str, met.addresses)),
            api_port=1,
            coordinator="studio",
            name=applicant.host.name,
            user=applicant.identity.wid,
            password="p",
        )

    def advert(self, host, wid, *, state, fingerprint):
        self.adverts.append((host.name, state, fingerprint))
        return SimpleNamespace(close=lambda: self.closed.append(wid))

    def join(self, given=None, **options):
        herald = Herald(self.lines.append)
        try:
            return Joining(self.state, Options(**options), herald).go(given)
        finally:
            herald.close()


@pytest.fixture
def stage(monkeypatch, tmp_path):
    return Stage(monkeypatch, StateDir(tmp_path))


def test_a_mac_that_joined_is_advertised_as_that_and_says_goodbye(stage):
    assert stage.join(TOKEN.format(STUDIO), name="air") == 0
    assert stage.adverts == [("air", JOINED, TOKEN.fingerprint)]
    assert len(stage.closed) == 1
    assert Credentials.kept(stage.state).name == "air"
    assert [line.partition(" ")[2] for line in stage.lines] == [
        "joined studio at 192.0.2.1:7633 as air; Ctrl-C leaves",
        "left studio",
    ]


def test_the_next_join_needs_nothing_and_keeps_the_name(stage):
    stage.join(TOKEN.format(STUDIO), name="air")
    stage.statuses = [0]
    assert stage.join() == 0
    token, given, known = stage.finds[1]
    assert (token, given, known) == (TOKEN, None, [STUDIO])
    assert stage.kept[1].name == "air"
    assert stage.adverts[1][0] == "air"


def test_addresses_of_another_fleet_are_not_tried(stage):
    stage.join(TOKEN.format(STUDIO))
    stage.statuses = [0]
    other = Token(fingerprint=bytes([1] * 32), secret="0" * 32, key="0" * 32)
    stage.join(other.format())
    assert stage.finds[1][2] == []


@pytest.mark.parametrize("trouble", [AuthError("no"), NoCoordinatorError("nobody")])
def test_a_mac_that_may_not_join_stays_visible_without_a_goodbye(stage, trouble):
    stage.trouble = trouble
    with pytest.raises(type(trouble)):
        stage.join(TOKEN.format(STUDIO), name="air")
    assert stage.adverts == [("air", PRESENT, TOKEN.fingerprint)]
    assert stage.closed == []


def test_a_mac_without_a_token_is_visible_too_and_told(stage):
    with pytest.raises(AuthError, match="has no token yet"):
        stage.join(name="air")
    assert stage.adverts == [("air", PRESENT, None)]


def test_nothing_is_advertised_for_a_coordinator_on_this_machine(stage):
    stage.at = LOCAL
    assert stage.join(TOKEN.format(LOCAL)) == 0
    stage.trouble = AuthError("no")
    with pytest.raises(AuthError):
        stage.join(TOKEN.format(LOCAL))
    assert stage.adverts == []


def test_a_mac_that_was_forgotten_asks_again_until_it_may_not(stage):
    stage.statuses = [Exit.AUTH, Exit.AUTH, 0]
    assert stage.join(TOKEN.format(STUDIO)) == 0
    assert len(stage.finds) == 3
    assert [kept is not None for kept in stage.kept] == [False, True, True]
    assert len(stage.closed) == 3
    said = [line.partition(" ")[2] for line in stage.lines if "does not know this Mac any more" in line]
    assert len(said) == 2
    assert "it was removed (`fleet kick`), or the fleet was made anew" in said[0]


def test_the_seat_is_free_afterwards_however_it_ended(stage):
    stage.trouble = AuthError("no")
    with pytest.raises(AuthError):
        stage.join(TOKEN.format(LOCAL))
    stage.trouble = None
    assert stage.join(TOKEN.format(LOCAL)) == 0


@pytest.mark.parametrize(
    ("host", "here"),
    [
        ("127.0.0.1", True),
        ("::1", True),
        ("localhost", True),
        ("192.0.2.1", False),
        ("fe80::1%en0", False),
        ("a", False),
    ],
)
def test_loopback_is_this_machine(host, here):
    assert is_here(Address(host)) is here


def test_no_thread_is_left_behind(stage):
    before = threading.active_count()
    stage.join(TOKEN.format(STUDIO))
    assert threading.active_count() == before
