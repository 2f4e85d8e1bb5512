"""Who a Mac is: made once, kept, and only its first digits are for all to see."""

import json
import re
import stat

import pytest

from fleet.config import StateDir
from fleet.errors import StorageError
from worker.identity import Identity


@pytest.fixture
def state(tmp_path):
    return StateDir(tmp_path / "state")


def test_it_is_made_once_and_kept_for_the_owner_alone(state):
    first = Identity.of(state)
    assert Identity.of(state) == first
    assert stat.S_IMODE((state.root / "identity.json").stat().st_mode) == 0o600


def test_an_id_is_twelve_hex_digits_and_no_two_macs_share_one(tmp_path):
    wids = {Identity.of(StateDir(tmp_path / str(number))).wid for number in range(20)}
    assert len(wids) == 20
    assert all(re.fullmatch(r"[0-9a-f]{12}", wid) for wid in wids)


def test_a_folder_that_was_copied_to_another_mac_makes_another_identity_there(state):
    first = Identity.of(state, lambda: "this Mac")
    second = Identity.of(state, lambda: "another Mac")
    assert first.wid != second.wid
    assert Identity.of(state, lambda: "another Mac") == second
    assert "this Mac" not in (state.root / "identity.json").read_text()


def test_a_machine_that_cannot_tell_its_serial_keeps_its_identity(state):
    first = Identity.of(state, lambda: "this Mac")
    assert Identity.of(state, lambda: "") == first
    assert Identity.of(state, lambda: "this Mac") == first


def test_the_whole_of_it_is_in_no_repr(state):
    assert Identity.of(state).uuid not in repr(Identity.of(state))


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"uuid": 3}', '{"uuid": "../../x"}', json.dumps({"uuid": "A" * 32, "machine": ""})]
)
def test_a_damaged_file_is_told_with_what_to_do(state, text):
    state.make()
    (state.root / "identity.json").write_text(text)
    with pytest.raises(StorageError, match="remove it"):
        Identity.of(state)
