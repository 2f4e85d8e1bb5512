"""Who becomes a member, and who is sent away."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import redis

from coordinator.broker.dispatch import Dispatch
from coordinator.control.controller import Controller
from coordinator.control.fleet_lines import mac_lines
from coordinator.control.fleet_service import FleetService
from coordinator.control.member import Member, Presence
from coordinator.control.membership import Membership
from coordinator.joining.accounts import Accounts
from coordinator.joining.discovery import Seen
from coordinator.joining.doorkeeper import Doorkeeper, Joined
from coordinator.joining.users import Users
from coordinator.ledger.ledger import Ledger
from coordinator.screens.snapshot import MacState
from fleet.config import StateDir
from fleet.errors import UsageError
from fleet.messages import Host
from fleet.presence import JOINED, PRESENT
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


def test_one_that_left_an_earlier_coordinator_is_not_shown_until_it_comes_again(house: House) -> None:
    """It was said to be joining for as long as a lease lasts."""
    house.users.accounts.admit(MINI.wid, "mini", "proof")
    house.membership.expect_known()
    assert mac_lines(house.controller.roster, {}, {}) == []
    house.let_in(MINI)
    assert [line.state for line in mac_lines(house.controller.roster, {}, {})] == [MacState.JOINING]


@pytest.mark.parametrize(("on_air", "state"), [(JOINED, MacState.JOINING), (PRESENT, MacState.PRESENT)])
def test_one_that_comes_back_to_a_new_coordinator_is_seen_on_the_network(
    house: House, on_air: str, state: MacState
) -> None:
    house.users.accounts.admit(MINI.wid, "mini", "proof")
    house.membership.expect_known()
    mac = Seen(name="mini", wid=MINI.wid, chip="M4", memory_bytes=1, state=on_air, fleet="", addresses=(), seen=0.0)
    place = SimpleNamespace(
        discovery=SimpleNamespace(macs=lambda: (mac,)), certificate=SimpleNamespace(fingerprint=bytes(32))
    )
    unused = cast(Any, None)
    service = FleetService(cast(Any, place), house.controller, unused, unused, house.membership, unused, lambda: None)
    assert [(line.name, line.state) for line in service._present(set())] == [("mini", state)]


def test_a_name_that_is_anothers_id_sends_nobody_away_and_names_both(house: House) -> None:
    house.let_in(Joined(wid="ba9876543210", name=MINI.wid, host=Host()))
    house.let_in(MINI)
    story = rf"{MINI.wid} \(id ba9876543210\) and mini \(id {MINI.wid}\): say the first by its id, the second by its"
    with pytest.raises(UsageError, match=story):
        house.membership.kick(MINI.wid)
    assert house.removed == []
    assert [house.membership.kick(said) for said in ("ba9876543210", "mini")] == [MINI.wid, "mini"]


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
