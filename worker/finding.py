"""Where the coordinator may be: what a person says, what was good last time, what the network says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from fleet import pin
from fleet.address import Address
from fleet.errors import AuthError, FleetError, NoCoordinatorError
from fleet.token import WHERE, Token
from worker import discover

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Met:
    """A coordinator that is the right one."""

    #: of its certificate, PEM
    certificate: str
    #: where it answered, then the others
    addresses: tuple[Address, ...]


@dataclass(slots=True)
class _Tries:
    """What addresses turned out to be."""

    fingerprint: bytes
    #: a sentence for each that was not the coordinator
    said: list[str] = field(default_factory=list)
    #: somebody answered with another certificate
    impostor: bool = False

    def first(self, places: Sequence[Address]) -> Met | None:
        """The coordinator at the first of `places` where it is."""
        for place in places:
            try:
                certificate = pin.meet(place, self.fingerprint)
            except FleetError as error:
                self.impostor |= isinstance(error, pin.ImpostorError)
                self.said.append(str(error))
            else:
                return Met(certificate=certificate, addresses=(place, *(other for other in places if other != place)))
        return None


def find(token: Token, given: Address | None, known: Sequence[Address], look: Search = search) -> Met:
    """The coordinator that `token` is of: at `given` alone if that is said, else where it was, else on the network.

    NoCoordinatorError lists what was tried and every way to say where it is; AuthError when only others answer.
    """
    tries = _Tries(token.fingerprint)
    met = tries.first([given] if given is not None else list(dict.fromkeys(known)))
    if met is None and given is None:
        met = _on_the_network(tries, known, look)
    if met is not None:
        return met
    told = "; ".join(tries.said)
    if tries.impostor:
        raise AuthError(
            f"{told}: nothing was sent there; is the token of this fleet? If the fleet was made anew, `fleet join "
            f"TOKEN` with its new one; {WHERE}"
        )
    raise NoCoordinatorError(
        f"no coordinator found ({told}). Is `fleet up` running there, on the same network? Say where with "
        f"--coordinator HOST:PORT, {VARIABLE}, or the token as `fleet up` prints it, with its @HOST:PORT"
    )


def _on_the_network(tries: _Tries, known: Sequence[Address], look: Search) -> Met | None:
    try:
        places = [place for place in look(tries.fingerprint) if place not in known]
    except discover.LocalNetworkError as error:
        tries.said.append(str(error))
        return None
    if not places:
        tries.said.append(f"nothing of this fleet answered on the local network in {SEARCH_S:.0f} s")
    return tries.first(places)
