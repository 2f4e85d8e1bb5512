"""From a token to work: finds the coordinator, is let in, works, and comes again when it was forgotten."""

from __future__ import annotations

import ipaddress
import logging
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from fleet import token as tokens
from fleet.address import Address
from fleet.config import StateDir
from fleet.credentials import Credentials
from fleet.errors import AuthError, Exit, NoCoordinatorError
from fleet.presence import JOINED, PRESENT
from fleet.token import WHERE, Token
from worker import finding
from worker.caffeine import awake
from worker.discover import Advert
from worker.enrol import Applicant, enrol
from worker.herald import Herald
from worker.identity import Identity
from worker.joined import WorkOptions, joined_worker
from worker.machine import host
from worker.seat import Seat, home

#: A Mac that may not join stays visible for this long before it ends, seconds, and its last advertisement two minutes
#: more: `fleet status` can show it. Advertising takes about one.
VISIBLE_S = 2.0
#: Pause before a Mac that was forgotten asks again, seconds.
ASK_AGAIN_S = 1.0
_FORGOTTEN = (
    "the coordinator does not know this Mac any more: it was removed (`fleet kick`), or the fleet was made anew; "
    "asking again"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(WorkOptions):
    """What a person says of this Mac."""

    #: empty for its own
    name: str = ""
    #: where the coordinator is, and nowhere else
    given: Address | None = None


class Joining:
    """One `fleet join`, the only one of its state folder."""

    def __init__(self, state: StateDir, options: Options, herald: Herald) -> None:
        self._state = state
        self._options = options
        self._herald = herald

    def go(self, given: str | None) -> int:
        """Joins with the token `given`, or the kept one, then works until told to stop; the exit status.

        Raises AuthError and NoCoordinatorError.
        """
        place = home(self._state)
        seat = Seat.take(place)
        try:
            logging.basicConfig(
                filename=place.logs / "worker.log",
                level=logging.INFO,
                format="%(asctime)s %(levelname)s %(threadName)s %(message)s",
            )
            token, at = _wanted(given, Credentials.kept(self._state))
            with awake():
                while (status := self._once(token, at)) == Exit.AUTH:
                    self._herald.say("forgotten", _FORGOTTEN)
                    time.sleep(ASK_AGAIN_S)
            return status
        finally:
            seat.release()

    def _once(self, token: Token | None, at: Address | None) -> int:
        """Joins and works; the exit status, `Exit.AUTH` when the coordinator forgot this Mac meanwhile."""
        kept = Credentials.kept(self._state)
        known = [place for place in (at, self._options.given) if place is not None]
        if kept is not None and token is not None and kept.parsed.fingerprint == token.fingerprint:
            known += kept.places
        try:
            credentials, at = self._enter(token, known, kept)
        except (AuthError, NoCoordinatorError):
            if not any(map(is_here, known)):
                self._stay_visible(token)
            raise
        credentials.keep(self._state)
        self._herald.say(
            "joined",
            f"joined {credentials.coordinator} at {at} as {credentials.name}; Ctrl-C leaves",
            coordinator=credentials.coordinator,
            address=str(at),
            name=credentials.name,
            id=credentials.user,
        )
        return self._work(credentials, at)

    def _enter(
        self, token: Token | None, known: Sequence[Address], kept: Credentials | None
    ) -> tuple[Credentials, Address]:
        """What lets this Mac in, and where."""
        if token is None:
            raise AuthError(
                f"this Mac has no token yet: give it as TOKEN, with --token-file, or in FLEET_TOKEN; {WHERE}"
            )
        met = finding.find(token, self._options.given, known)
        name = self._options.name or (kept.name if kept is not None else "")
        applicant = Applicant(identity=Identity.of(self._state), host=host(name))
        return enrol(met, token, applicant, kept), met.addresses[0]

    def _work(self, credentials: Credentials, at: Address) -> int:
        with ExitStack() as stack:
            if not is_here(at):
                wid, fingerprint = credentials.user, credentials.parsed.fingerprint
                advert = Advert(host(credentials.name), wid, state=JOINED, fingerprint=fingerprint)
                stack.callback(advert.close)
            status = joined_worker(self._state, credentials, self._options, self._herald).run()
        if status != Exit.AUTH:
            self._herald.say("left", f"left {credentials.coordinator}")
        return status

    def _stay_visible(self, token: Token | None) -> None:
        """Lets coordinators see a Mac that would like to join; without a goodbye, for two minutes more."""
        wid = Identity.of(self._state).wid
        Advert(host(self._options.name), wid, state=PRESENT, fingerprint=token.fingerprint if token else None)
        time.sleep(VISIBLE_S)


def _wanted(given: str | None, kept: Credentials | None) -> tuple[Token | None, Address | None]:
    """The token to join with, and the address behind it."""
    if given:
        return tokens.parse(given)
    return (kept.parsed, None) if kept is not None else (None, None)


def is_here(address: Address) -> bool:
    """Whether a coordinator is on this very machine, reached without the network."""
    try:
        return ipaddress.ip_address(address.host.partition("%")[0]).is_loopback
    except ValueError:
        return address.host == "localhost"
