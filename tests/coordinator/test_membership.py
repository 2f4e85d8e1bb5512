"""Who becomes a member, and who is sent away."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest
import redis

from coordinator.broker.dispatch import Dispatch
from coordinator.control.controller import Controller
from coordinator.control.member import Member, Presence
from coordinator.control.membership import Membership
from coordinator.joining.accounts import Accounts
from coordinator.joining.doorkeeper import Doorkeeper, Joined
from coordinator.joining.users import Users
from coordinator.ledger.ledger import Ledger
from fleet.config import StateDir
from fleet.errors import UsageError
from fleet.messages import Host
from tests.post import Post

MINI = Joined(wid="0123456789ab", name="mini", host=Host(name="mini", chip="M4"))


class Door:
    """Lets in whom a test says, each once."""

    def __init__(self) -> None:
        self.waiting: list[Joined] = []

    def poll(self) -> list[Joined]:
        come, self.waiting = self.waiting, []
        return come


class House:
    """A controller, a door, and users without a broker."""

    def __init__(self, state: StateDir, ledger: Ledger) -> None:
        self.told: list[str] = []
        self.post = Post()
        self.controller = Controller(ledger=ledger, dispatch=cast(Dispatch, self.post), tell=self.told.append)
        self.users = Users(Accounts(state))
        self.removed: list[str] = []
        self.users.remove = lambda _client, wid: self.removed.append(wid)  # type: ignore[method-assign]
        self.door = Door()
        client = cast(redis.Redis, None)
        self.membership = Membership(self.controller, cast(Doorkeeper, self.door), self.users, client)
        self.membership._poll._period_s = 0.0

    def let_in(self, joined: Joined) -> None:
        self.door.waiting.append(joined)
        self.membership.turn()


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    state = StateDir(tmp_path)
    with Ledger.open(state) as ledger:
        yield House(state, ledger)


def test_one_that_joins_is_expected_under_its_name(house: House) -> None:
    house.let_in(MINI)
    member = house.controller.members[MINI.wid]
    assert (member.name, member.host.chip, member.presence) == ("mini", "M4", Presence.EXPECTED)
    assert house.told == ["mini has joined (M4)"]


def test_one_that_joins_again_is_the_same_member(house: House) -> None:
    house.let_in(MINI)
    member = house.controller.members[MINI.wid]
    house.let_in(Joined(wid=MINI.wid, name="studio", host=Host(name="studio")))
    assert house.controller.members == {MINI.wid: member}
    assert member.name == "studio"


def test_those_that_joined_an_earlier_coordinator_are_expected(house: House) -> None:
    house.users.accounts.admit(MINI.wid, "mini", "proof")
    house.membership.expect_known()
    assert house.controller.members[MINI.wid].name == "mini"
    assert house.told == [], "nobody is there yet"


@pytest.mark.parametrize("said", [MINI.name, MINI.wid])
def test_one_is_sent_away_by_name_or_id(house: House, said: str) -> None:
    house.let_in(MINI)
    assert house.membership.kick(said) == "mini"
    assert (house.removed, house.post.purged, house.controller.members) == ([MINI.wid], [MINI.wid], {})
    assert house.membership.kicked == {MINI.wid: "mini"}
    house.let_in(MINI)
    assert house.membership.kicked == {}, "it was let in again"


def test_sending_away_nobody_names_those_that_are_there(house: House) -> None:
    house.let_in(MINI)
    with pytest.raises(UsageError, match="no worker air in this fleet: there is mini"):
        house.membership.kick("air")


def test_the_coordinators_own_worker_is_not_sent_away(house: House) -> None:
    house.controller.add_member(Member(id="own", name="here", local=True))
    with pytest.raises(UsageError, match="fleet down"):
        house.membership.kick("here")
    assert "own" in house.controller.members
