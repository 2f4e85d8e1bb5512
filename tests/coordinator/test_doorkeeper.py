"""Who asks to join gets a user of its own, or a sentence."""

import json
import secrets

import pytest
import redis

from coordinator.broker.broker import connect
from coordinator.joining.accounts import Accounts
from coordinator.joining.doorkeeper import LOOK_S, Doorkeeper, free_name
from coordinator.joining.users import Users
from fleet import __version__, codec, keys
from fleet.config import StateDir
from fleet.errors import BrokerError
from fleet.messages import Host
from tests.guarded_broker import GuardedBroker

UUID, OTHER = "0123456789abcdef" * 2, "fedcba9876543210" * 2


class Door(GuardedBroker):
    def __init__(self, state):
        super().__init__(state)
        self.now_s = 0.0
        self.keeper = Doorkeeper(self.client, self.users, coordinator="studio", api_port=7634, clock=lambda: self.now_s)

    def knock(self, data):
        self.client.xadd(keys.JOIN, {keys.FIELD: data})

    def ask(self, **fields):
        """Asks, lets the doorkeeper look, returns whom it let in and what it answered."""
        request = {
            **{"id": secrets.token_hex(16), "uuid": UUID, "name": "air", "chip": "M4", "memory_bytes": 16 << 30},
            **{"version": __version__, "wire": codec.VERSION},
            **fields,
        }
        self.knock(json.dumps(request))
        joined = self.keeper.poll()
        reply = self.client.get(keys.reply(request["id"]))
        return joined, json.loads(reply) if reply else None

    def enter(self, reply):
        return self.log_in(reply["user"], reply["password"])


@pytest.fixture(scope="module")
def house(tmp_path_factory):
    door = Door(StateDir(tmp_path_factory.mktemp("door")))
    yield door
    door.close()


@pytest.fixture
def door(house):
    """The same house with nobody known in it."""
    for wid in house.users.accounts.workers:
        house.users.remove(house.client, wid)
    house.users.rotate(house.client)
    return house


def test_who_asks_gets_a_user_that_works(door):
    (joined,), reply = door.ask()
    assert joined.wid == "0123456789ab"
    assert joined.host == Host(name="air", chip="M4", memory_bytes=16 << 30, version=__version__)
    assert (reply["user"], reply["name"], reply["coordinator"], reply["api_port"]) == (
        joined.wid,
        "air",
        "studio",
        7634,
    )
    assert door.enter(reply).ping()


def test_a_request_is_answered_once_and_gone(door):
    door.ask()
    assert door.client.xlen(keys.JOIN) == 0
    assert door.keeper.poll() == []


def test_an_answer_does_not_stay_for_ever(door):
    request = secrets.token_hex(16)
    door.ask(id=request)
    assert 0 < door.client.ttl(keys.reply(request)) <= 60


def test_joining_again_keeps_id_and_name_and_the_old_password_opens_nothing(door):
    _, first = door.ask()
    (joined,), second = door.ask()
    assert (joined.name, second["user"]) == ("air", first["user"])
    client = door.enter(first)
    with pytest.raises(redis.AuthenticationError):
        client.ping()


def test_the_second_mac_of_a_name_is_told_another(door):
    door.ask()
    (joined,), reply = door.ask(uuid=OTHER, name="Air")
    assert (joined.name, reply["name"]) == ("Air-2", "Air-2")
    (joined,), _ = door.ask(uuid=OTHER, name="Air")
    assert joined.name == "Air-2"  # and keeps it


def test_the_coordinators_own_worker_keeps_its_name(door):
    door.users.admit_own(door.client, "aaaaaaaaaaaa", "studio")
    (joined,), _ = door.ask(name="Studio")
    assert joined.name == "Studio-2"


def test_a_name_is_free_again_once_its_mac_was_removed(door):
    door.ask()
    door.users.remove(door.client, UUID[:12])
    (joined,), _ = door.ask(uuid=OTHER)
    assert joined.name == "air"


def test_numbers_go_on_until_a_name_is_free():
    class Named:
        def __init__(self, name):
            self.name = name

    taken = {"a": Named("air"), "b": Named("air-2"), "c": Named("mini")}
    assert free_name("air", "z", taken) == "air-3"
    assert free_name("air", "a", taken) == "air"


@pytest.mark.parametrize("wrong", [{"wire": codec.VERSION + 1}, {"wire": None}, {"version": "9.9.0"}, {"version": 3}])
def test_another_version_is_refused_with_a_sentence(door, wrong):
    joined, reply = door.ask(**wrong)
    assert joined == []
    assert "install the same version on both" in reply["refused"]
    assert __version__ in reply["refused"]
    assert "password" not in reply


def test_another_patch_level_is_let_in(door):
    joined, _ = door.ask(version=".".join([*__version__.split(".")[:2], "99"]))
    assert len(joined) == 1


def test_a_removed_mac_is_refused_until_there_is_a_new_token(door):
    door.ask()
    door.users.remove(door.client, UUID[:12])
    joined, reply = door.ask()
    assert joined == []
    assert "fleet kick" in reply["refused"]
    door.users.rotate(door.client)
    assert len(door.ask()[0]) == 1


def test_a_mac_that_claims_anothers_id_is_refused(door):
    _, first = door.ask()
    joined, reply = door.ask(uuid=UUID[:12] + "0" * 20)
    assert joined == []
    assert "same id" in reply["refused"]
    assert door.enter(first).ping()  # its password is as it was


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff\xfe",
        b"[]",
        b"3",
        b"{}",
        b"[" * 3000,
        b'{"id": 1, "uuid": 2}',
        json.dumps({"id": "a" * 32, "uuid": "../../etc/passwd"}).encode(),
        json.dumps({"id": "A" * 32, "uuid": "~*" + "0" * 30}).encode(),
        json.dumps({"id": "a" * 32, "uuid": "0" * 32, "name": "x" * 5000}).encode(),
    ],
    ids=range(10),
)
def test_what_cannot_be_understood_is_passed_over_and_logged(door, caplog, data):
    door.knock(data)
    assert door.keeper.poll() == []
    assert "cannot be understood" in caplog.text
    assert door.client.xlen(keys.JOIN) == 0
    assert set(door.users.accounts.workers) == set()


def test_an_entry_without_our_field_is_passed_over(door):
    door.client.xadd(keys.JOIN, {"other": "x"})
    assert door.keeper.poll() == []


@pytest.mark.parametrize(
    ("name", "becomes"),
    [
        ("  air\n\x1b[31m", "air[31m"),
        ("", "0123456789ab"),
        (None, "0123456789ab"),
        ("a" * 200, "a" * 63),
        ("Zoë", "Zoë"),
    ],
)
def test_names_are_made_fit_to_be_shown(door, name, becomes):
    (joined,), _ = door.ask(name=name)
    assert joined.name == becomes


@pytest.mark.parametrize("value", [-1, "many", None, 1 << 80, 1.5, True])
def test_a_memory_that_is_none_counts_as_unknown(door, value):
    (joined,), _ = door.ask(memory_bytes=value)
    assert joined.host.memory_bytes == 0


def test_what_the_broker_refused_is_logged_a_little_later(door, caplog):
    _, reply = door.ask()
    client = door.enter(reply)
    with pytest.raises(redis.exceptions.NoPermissionError):
        client.flushall()
    door.keeper.poll()
    assert "flushall" not in caplog.text
    door.now_s += LOOK_S + 1
    door.keeper.poll()
    assert "user 0123456789ab was refused: command flushall, 1 times" in caplog.text
    assert door.client.acl_log() == []


def test_a_broker_that_is_away_is_told_as_that(tmp_path):
    client = connect(f"unix://{tmp_path}/none.sock")
    users = Users(Accounts(StateDir(tmp_path)))
    with pytest.raises(BrokerError, match="does not answer"):
        Doorkeeper(client, users, coordinator="studio", api_port=1).poll()
    client.close()


def test_nobody_can_shut_the_door_by_using_its_ids_up(door):
    """An entry with the last id of all, trimmed away at once, leaves a stream that takes no more."""
    door.client.xadd(keys.JOIN, {"m": "x"}, id="18446744073709551615-18446744073709551615", maxlen=0, approximate=False)
    with pytest.raises(redis.ResponseError):
        door.knock("{}")
    door.now_s += LOOK_S + 1
    door.keeper.poll()
    joined, _ = door.ask()
    assert [one.name for one in joined] == ["air"]
