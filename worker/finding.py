"""Where the coordinator may be: what a person says, what was good last time, what the network says."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fleet.address import Address
from fleet.errors import FleetError, NoCoordinatorError
from fleet.token import Token
from worker import discover
from worker.enrol import Met, meet_first

#: How long the network is asked for a coordinator, seconds.
SEARCH_S = 3.0
#: The environment variable that says where the coordinator is.
VARIABLE = "FLEET_COORDINATOR"

Search = Callable[[bytes], Sequence[Address]]


def search(fingerprint: bytes) -> list[Address]:
    """What answers on the local network as the coordinator with this certificate; LocalNetworkError when macOS
    forbids to ask."""
    found = discover.find(fingerprint, SEARCH_S)
    return [Address(host, each.port) for each in found for host in each.addresses]


def search_quietly(fingerprint: bytes) -> list[Address]:
    """The same, and nothing where asking is forbidden."""
    try:
        return search(fingerprint)
    except discover.LocalNetworkError:
        return []


def find(token: Token, given: Address | None, known: Sequence[Address], look: Search = search) -> Met:
    """The coordinator that `token` is of: at `given` alone if that is said, else where it was, else on the network.

    NoCoordinatorError lists what was tried and every way to say where it is; AuthError when only others answer.
    """
    said = meet_first([given] if given is not None else known, token.fingerprint)
    if isinstance(said, Met):
        return said
    if given is None:
        try:
            places = [place for place in look(token.fingerprint) if place not in known]
        except FleetError as error:
            said.append(str(error))
        else:
            if not places:
                said.append(f"nothing of this fleet answered on the local network in {SEARCH_S:.0f} s")
            met = meet_first(places, token.fingerprint, said)
            if isinstance(met, Met):
                return met
            said = met
    raise NoCoordinatorError(
        f"no coordinator found ({'; '.join(said)}). Is `fleet up` running there, on the same network? Say where with "
        f"--coordinator HOST:PORT, {VARIABLE}, or the token as `fleet up` prints it, with its @HOST:PORT"
    )
