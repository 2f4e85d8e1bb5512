"""What a Mac keeps of its fleet."""

import json
import stat
from dataclasses import replace

import pytest

from fleet.address import Address
from fleet.config import StateDir
from fleet.credentials import Credentials
from fleet.errors import StorageError
from fleet.token import Token

TOKEN = Token(fingerprint=bytes(32), secret="ab" * 16, key="cd" * 16)
SOME = Credentials(
    token=TOKEN.format(),
    certificate="PEM",
    addresses=("10.0.0.1:7633", "[fe80::1%en0]:7633"),
    api_port=7634,
    coordinator="studio",
    name="air",
    user="0123456789ab",
    password="secret",
)


@pytest.fixture
def state(tmp_path):
    return StateDir(tmp_path)


def test_they_are_kept_for_the_owner_alone_and_read_back(state):
    SOME.keep(state)
    assert Credentials.kept(state) == SOME
    assert stat.S_IMODE((state.root / "fleet.json").stat().st_mode) == 0o600
    assert SOME.parsed == TOKEN
    assert SOME.places == [Address("10.0.0.1"), Address("fe80::1%en0")]


def test_none_are_kept_before_the_first_join_and_after_forgetting(state):
    assert Credentials.kept(state) is None
    assert not Credentials.forget(state)
    SOME.keep(state)
    assert Credentials.forget(state)
    assert Credentials.kept(state) is None


@pytest.mark.parametrize(
    "text", ["", "[]", "3", "{}", "not json", json.dumps({"token": "fl1-x"}), json.dumps({"addresses": [1]})]
)
def test_a_damaged_file_is_told_with_what_to_do(state, text):
    (state.root / "fleet.json").write_text(text)
    with pytest.raises(StorageError, match="damaged: remove it and join again"):
        Credentials.kept(state)


def test_fields_of_a_later_version_do_no_harm(state):
    SOME.keep(state)
    path = state.root / "fleet.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "more": 1}))
    assert Credentials.kept(state) == SOME


def test_a_mac_that_joined_has_a_key_of_its_own():
    assert SOME.key == "0123456789ab.secret"
    assert replace(SOME, user="", password="").key == TOKEN.key


def test_their_secrets_are_in_no_repr():
    assert SOME.token not in repr(SOME)
    assert "secret" not in repr(replace(SOME, coordinator="x"))
