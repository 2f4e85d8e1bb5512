"""Where the fleet is that a command asks, and what opens it there."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from coordinator.control.running import Running
from fleet import token as tokens
from fleet.address import Address
from fleet.config import StateDir
from fleet.credentials import Credentials
from fleet.errors import AuthError, NoCoordinatorError
from fleet.flags import folder
from fleet.token import WHERE, Token

COORDINATOR, TOKEN = "FLEET_COORDINATOR", "FLEET_TOKEN"
WAYS = (
    "start one here with `fleet up`, join one with `fleet join`, or say where it is with --coordinator HOST:PORT "
    f"or {COORDINATOR}, and its token with {TOKEN}"
)
LOOPBACK = "127.0.0.1"
#: From a certificate's fingerprint to where its coordinator's API may be.
Search = Callable[[bytes], tuple[Address, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A fleet's API."""

    #: hosts and the API's port there, the most promising first
    addresses: tuple[Address, ...]
    token: Token = field(repr=False)
    #: what opens the API, empty for the key in the token
    own_key: str = field(default="", repr=False)
    #: plain HTTP, on this very machine
    plain: bool = False
    #: what else to do when it is not to be reached
    hint: str = ""

    @property
    def key(self) -> str:
        """What opens the API."""
        return self.own_key or self.token.key


def add_place_flags(parser: argparse.ArgumentParser, *, record: bool = False) -> None:
    """Where to ask; `record` for commands that can also read the record of this Mac."""
    group = parser.add_argument_group("fleet")
    group.add_argument("--coordinator", metavar="HOST:PORT", help="the fleet's address (the one this Mac belongs to)")
    if record:
        group.add_argument("--local", action="store_true", help="this Mac's own record, whatever fleet it belongs to")
    group.add_argument("--state-dir", type=folder, metavar="DIR", help="the state folder (~/.local/state/fleet)")


def state_dir(args: argparse.Namespace) -> StateDir:
    """The state folder that the flags name."""
    return StateDir(args.state_dir.absolute()) if args.state_dir else StateDir.default()


def find_place(
    args: argparse.Namespace, environment: Mapping[str, str] = os.environ, search: Search | None = None
) -> Place | None:
    """The fleet to ask, None when none is named and this Mac belongs to none.

    In this order: --coordinator, FLEET_COORDINATOR, an address in FLEET_TOKEN, a `fleet up` that runs on the state
    folder, the fleet this Mac has joined where FLEET_TOKEN is none of another, and the local network for FLEET_TOKEN's.
    AuthError when one is named and no token is known for it.
    """
    state = state_dir(args)
    running, kept = Running.of(state), Credentials.kept(state)
    given = environment.get(TOKEN, "")
    token, place = tokens.parse(given) if given else (None, None)
    named = args.coordinator or environment.get(COORDINATOR, "")
    if named:
        place = Address.parse(named)
    if place is not None:
        if token is None and kept is not None:
            return Place(addresses=(_api(place, kept),), token=kept.parsed, own_key=kept.key)
        if token is None and running is not None:
            token = tokens.parse(running.token)[0]
        if token is None:
            raise AuthError(f"no token of the fleet at {place} is known: set {TOKEN}; {WHERE}")
        return Place(addresses=(_api(place, kept),), token=token)
    if running is not None:
        here = Address(LOOPBACK, running.plain_port)
        return Place(addresses=(here,), token=tokens.parse(running.token)[0], plain=True)
    if kept is not None and (token is None or token.fingerprint == kept.parsed.fingerprint):
        found = tuple(Address(place.host, kept.api_port) for place in kept.places)
        return Place(addresses=found, token=token or kept.parsed, own_key="" if token else kept.key)
    return Place(addresses=_on_the_network(token, search), token=token) if token is not None else None


def the_place(args: argparse.Namespace) -> Place:
    """The fleet to ask; NoCoordinatorError, telling every way, when there is none."""
    found = find_place(args)
    if found is None:
        raise NoCoordinatorError(f"no fleet is known here: {WAYS}")
    return found


def place_or_record(args: argparse.Namespace) -> Place | None:
    """The fleet to ask, None for the record of this Mac: asked for with --local, or there is no fleet."""
    found = None if args.local else find_place(args)
    return found and replace(found, hint=", or see this Mac's own record with --local")


def _on_the_network(token: Token, search: Search | None) -> tuple[Address, ...]:
    """Where the coordinator of `token` says on the network that it is; NoCoordinatorError when it says nothing."""
    from coordinator.joining.discovery import find_api

    found = (search or find_api)(token.fingerprint)
    if not found:
        raise NoCoordinatorError(
            f"nothing of {TOKEN}'s fleet answers on the local network: is `fleet up` running, on the same network? Say "
            f"where with --coordinator HOST:PORT, {COORDINATOR}, or {TOKEN} as TOKEN@HOST:PORT"
        )
    return found


def _api(gate: Address, kept: Credentials | None) -> Address:
    """The API beside a gate: where it was when this Mac joined, else on the next port."""
    known = kept is not None and gate in kept.places
    return Address(gate.host, kept.api_port if kept is not None and known else gate.port + 1)
