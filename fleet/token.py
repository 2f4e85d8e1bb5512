"""What lets a Mac into a fleet: `fl1-...`, one word to copy, or `fl1-...@host:port` with the address behind it."""

from __future__ import annotations

import base64
import binascii
import hashlib
import secrets
from dataclasses import dataclass, field

from fleet.address import Address
from fleet.errors import UsageError

#: The kind of token, and the version of its layout.
PREFIX = "fl1-"
#: sha256 of the certificate, the two secrets, and a checksum that tells a token cut short from one that is refused.
_FINGERPRINT_BYTES, _SECRET_BYTES, _CHECK_BYTES = 32, 16, 4
_BYTES = _FINGERPRINT_BYTES + 2 * _SECRET_BYTES + _CHECK_BYTES
#: Where a person finds it.
WHERE = "`fleet token` shows it where `fleet up` runs"


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """Proves the coordinator to a Mac, and the Mac to the coordinator."""

    #: sha256 of the coordinator's certificate (DER)
    fingerprint: bytes
    #: password of the `join` user, 32 hex digits
    secret: str = field(repr=False)
    #: bearer key of the API, 32 hex digits
    key: str = field(repr=False)

    def format(self, address: Address | None = None) -> str:
        """The token as text, with the address of the coordinator's gate when that is given."""
        body = self.fingerprint + bytes.fromhex(self.secret) + bytes.fromhex(self.key)
        text = PREFIX + base64.urlsafe_b64encode(body + _check(body)).decode().rstrip("=")
        return f"{text}@{address}" if address is not None else text


def new_secret() -> str:
    """A random secret as a token carries it."""
    return secrets.token_hex(_SECRET_BYTES)


def parse(text: str) -> tuple[Token, Address | None]:
    """The token in `text`, and the address behind it if there is one; UsageError that says what is wrong."""
    word, at, place = text.strip().partition("@")
    if not word.startswith(PREFIX):
        raise UsageError(f"this is no token: a token begins with {PREFIX}; {WHERE}")
    data = _decoded(word.removeprefix(PREFIX))
    if data is None or len(data) != _BYTES or _check(data[:-_CHECK_BYTES]) != data[-_CHECK_BYTES:]:
        raise UsageError(f"the token is cut or mistyped: copy the whole of it; {WHERE}")
    at_secret, at_key = _FINGERPRINT_BYTES, _FINGERPRINT_BYTES + _SECRET_BYTES
    token = Token(
        fingerprint=data[:at_secret],
        secret=data[at_secret:at_key].hex(),
        key=data[at_key : at_key + _SECRET_BYTES].hex(),
    )
    return token, Address.parse(place) if at else None


def _decoded(body: str) -> bytes | None:
    try:
        return base64.b64decode(body + "=" * (-len(body) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        return None


def _check(body: bytes) -> bytes:
    return hashlib.sha256(body).digest()[:_CHECK_BYTES]
