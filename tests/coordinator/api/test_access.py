"""Which keys open the API: the token's, and that of each worker until it is removed."""

from __future__ import annotations

from pathlib import Path

import pytest

from coordinator.api.access import Access
from coordinator.joining.accounts import Accounts
from fleet.config import StateDir
from fleet.credentials import own_key

AIR, MINI = "0123456789ab", "ba9876543210"


class House:
    """A fleet of two workers."""

    def __init__(self, state: StateDir) -> None:
        self.accounts = Accounts(state)
        self.air = own_key(AIR, self.accounts.admit(AIR, "air", "proof"))
        self.mini = own_key(MINI, self.accounts.admit(MINI, "mini", "proof"))
        self.access = Access(self.accounts.secrets.key, self.accounts.get)

    def answer(self, key: str) -> str:
        """The code of the refusal, empty for a key that opens."""
        refusal = self.access.refusal(f"Bearer {key}")
        return (refusal.code or "?") if refusal else ""


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(StateDir(tmp_path))


def test_the_tokens_key_and_each_workers_own_open_it(house: House) -> None:
    assert [house.answer(key) for key in (house.accounts.secrets.key, house.air, house.mini)] == ["", "", ""]
    assert house.access.refusal(f"bearer {house.air}") is None


@pytest.mark.parametrize(
    "said",
    [
        None,
        "",
        "Bearer",
        "Bearer ",
        "Bearer .",
        f"Bearer {AIR}",
        f"Bearer {AIR}.",
        f"Bearer {AIR}.{'0' * 32}",
        "Bearer \xff.\xff",
    ],
)
def test_anything_else_does_not(house: House, said: str | None) -> None:
    refusal = house.access.refusal(said)
    assert refusal is not None
    assert (refusal.status, refusal.code) == (401, "invalid_api_key")


def test_no_worker_opens_it_with_the_password_of_another_or_with_what_is_kept_of_its_own(house: House) -> None:
    account = house.accounts.get(AIR)
    assert account is not None
    assert house.answer(own_key(MINI, house.air.partition(".")[2])) == "invalid_api_key"
    assert house.answer(own_key(AIR, account.password)) == "invalid_api_key"
    assert house.access.refusal(f"Basic {house.air}") is not None


def test_the_key_of_a_worker_that_was_removed_opens_nothing_and_says_so(house: House) -> None:
    house.accounts.kick(AIR)
    assert (house.answer(house.air), house.answer(house.mini)) == ("removed", "")
    assert house.answer(own_key(AIR, "guess")) == "invalid_api_key", "a stranger learns nothing of it"
    house.accounts.rotate()
    assert house.answer(house.air) == "invalid_api_key"


def test_joining_again_ends_the_key_before(house: House) -> None:
    new = own_key(AIR, house.accounts.admit(AIR, "air", "proof"))
    assert (house.answer(house.air), house.answer(new)) == ("invalid_api_key", "")


def test_an_empty_key_is_no_key() -> None:
    with pytest.raises(ValueError, match="let everybody in"):
        Access("", {}.get)
