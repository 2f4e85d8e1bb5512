"""Who belongs to the fleet: accounts become members when the coordinator starts, joiners when they come."""

from __future__ import annotations

import redis

from coordinator.control.controller import Controller
from coordinator.control.member import Member, Presence
from coordinator.control.turn import Every
from coordinator.joining.doorkeeper import Doorkeeper
from coordinator.joining.users import Users
from fleet.errors import UsageError

#: How often we look whether somebody asks to join, seconds.
POLL_S = 0.25


class Membership:
    """Lets workers in and sends them away. Owned by the controller's thread."""

    def __init__(self, controller: Controller, doorkeeper: Doorkeeper, users: Users, client: redis.Redis) -> None:
        self._controller = controller
        self._doorkeeper = doorkeeper
        self._users = users
        self._client = client
        self._poll = Every(POLL_S)
        #: names of those that were sent away since the start, by id
        self.kicked: dict[str, str] = {}

    def expect_known(self) -> None:
        """Those that joined another coordinator of this folder come back by themselves."""
        for wid, account in self._users.accounts.workers.items():
            self._controller.add_member(Member(id=wid, name=account.name, forgotten=True))  # it may have left

    def turn(self) -> None:
        """Lets in whoever asks. Raises BrokerError while the broker does not answer."""
        if not self._poll.due():
            return
        for joined in self._doorkeeper.poll():
            known = self._controller.members.get(joined.wid)
            self.kicked.pop(joined.wid, None)
            if known is None:
                self._controller.add_member(Member(id=joined.wid, name=joined.name, host=joined.host))
                self._controller.tell(f"{joined.name} has joined{_in_words(joined.host.chip)}")
            else:
                known.name, known.host = joined.name, joined.host
                known.forgotten &= known.presence is not Presence.EXPECTED

    def kick(self, name: str) -> str:
        """Sends a worker away by its name or id; its name. UsageError when there is none, there are two, or it is our
        own."""
        found = [m for m in self._controller.members.values() if name in (m.id, m.name)]
        if not found:
            names = ", ".join(sorted(m.name for m in self._controller.members.values())) or "nobody"
            raise UsageError(f"there is no worker {name} in this fleet: there is {names}")
        if len(found) > 1:  # a Mac may be called anything
            told = " and ".join(f"{m.name} (id {m.id})" for m in sorted(found, key=lambda m: m.id == name))
            raise UsageError(
                f"{name} may be either of two workers, {told}: say the first by its id, the second by its name"
            )
        (member,) = found
        if member.local:
            raise UsageError(f"{member.name} is the coordinator's own worker: end it with `fleet down`")
        self._users.remove(self._client, member.id)  # first: from here on it cannot write
        self.kicked[member.id] = member.name
        self._controller.remove_member(member)
        self._controller.tell(f"{member.name} was removed from the fleet: its rows run elsewhere")
        return member.name


def _in_words(chip: str) -> str:
    return f" ({chip})" if chip else ""
