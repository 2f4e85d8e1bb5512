"""Trust in one certificate: met by its fingerprint, then pinned. Names and dates in it mean nothing."""

from __future__ import annotations

import hashlib
import hmac
import socket
import ssl

from fleet.address import Address
from fleet.errors import FleetError

#: How long one address may take to answer, and then to show its certificate, seconds.
CONNECT_S = 1.0
#: An address that took the connection is there, perhaps busy: it may take longer over TLS, seconds.
HANDSHAKE_S = 5.0


class UnreachableError(FleetError):
    """Raised when nobody answers at an address, or not with TLS."""


class ImpostorError(FleetError):
    """Raised when somebody answers with another certificate; nothing was sent to it."""


def meet(address: Address, fingerprint: bytes) -> str:
    """The certificate (PEM) of the coordinator at `address`, after its fingerprint was found right.

    Not a byte but TLS' own is sent. Raises UnreachableError or ImpostorError.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # compared here, by what the token says
    try:
        with socket.create_connection((address.host, address.port), CONNECT_S) as plain:
            plain.settimeout(HANDSHAKE_S)
            with context.wrap_socket(plain, suppress_ragged_eofs=True) as secured:
                der = secured.getpeercert(binary_form=True)
    except (OSError, UnicodeError) as error:
        raise UnreachableError(f"{address}: {_why(error)}") from error
    if der is None or not hmac.compare_digest(hashlib.sha256(der).digest(), fingerprint):
        raise ImpostorError(f"{address}: another coordinator, whose certificate is not the token's")
    return ssl.DER_cert_to_PEM_cert(der)


def context(certificate: str) -> ssl.SSLContext:
    """For clients that trust exactly `certificate` (PEM)."""
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    made.minimum_version = ssl.TLSVersion.TLSv1_3
    made.check_hostname = False
    made.load_verify_locations(cadata=certificate)
    return made


def _why(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no answer"
    if isinstance(error, ssl.SSLError):
        return "answers, but not as a coordinator"
    if isinstance(error, ConnectionRefusedError):
        return "nothing listens there"
    if isinstance(error, socket.gaierror):
        return "no machine of this name"
    return (getattr(error, "strerror", None) or type(error).__name__).lower()
