"""The fleet's secrets and its workers, on disk."""

import stat

import pytest

from coordinator.joining.accounts import Accounts, hashed
from fleet.config import StateDir
from fleet.errors import StorageError

WID, OTHER = "0123456789ab", "ba9876543210"


@pytest.fixture
def state(tmp_path):
    return StateDir(tmp_path)


def test_a_coordinator_that_starts_again_knows_secrets_and_workers(state):
    first = Accounts(state)
    password = first.admit(WID, "air", "proof")
    again = Accounts(state)
    assert again.secrets == first.secrets
    assert again.workers == first.workers
    assert again.workers[WID].password == hashed(password)
    assert again.token(bytes(32)) == first.token(bytes(32))


def test_files_are_for_the_owner_alone_and_hold_no_workers_password(state):
    password = Accounts(state).admit(WID, "air", "proof")
    for name in ("secrets.json", "workers.json"):
        path = state.root / name
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert password not in path.read_text()
        assert '"proof": "proof"' not in path.read_text()


def test_joining_again_keeps_one_account_with_another_password(state):
    accounts = Accounts(state)
    passwords = {accounts.admit(WID, name, "proof") for name in ("air", "air 2")}
    assert len(passwords) == 2
    assert [account.name for account in accounts.workers.values()] == ["air 2"]


def test_a_kicked_worker_works_here_no_more_but_is_remembered(state):
    accounts = Accounts(state)
    accounts.admit(WID, "air", "proof")
    accounts.admit(OTHER, "mini", "proof")
    accounts.kick(WID)
    again = Accounts(state)
    assert set(again.workers) == {OTHER}
    assert again.get(WID).kicked


def test_a_new_token_has_new_secrets_keeps_workers_and_forgives(state):
    accounts = Accounts(state)
    accounts.admit(WID, "air", "proof")
    accounts.admit(OTHER, "mini", "proof")
    accounts.kick(WID)
    before = accounts.token(bytes(32))
    accounts.rotate()
    after = Accounts(state).token(bytes(32))
    assert before.secret != after.secret
    assert before.key != after.key
    assert set(accounts.workers) == {OTHER}
    assert accounts.get(WID) is None  # its password opens nothing any more either


@pytest.mark.parametrize("name", ["secrets.json", "workers.json"])
@pytest.mark.parametrize("text", ["rubbish", "[3]", '{"a": 1}', '[{"wid": 1}]'])
def test_a_damaged_file_is_told_with_what_to_do(state, name, text):
    Accounts(state)
    (state.root / name).write_text(text)
    with pytest.raises(StorageError, match="damaged: remove it"):
        Accounts(state)
