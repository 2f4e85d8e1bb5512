"""Lets in only who says the token's key or that of a worker, whatever they ask for."""

from __future__ import annotations

import hmac
from collections.abc import Callable

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from coordinator.api.replies import ApiError, refusal
from coordinator.joining.accounts import Account, hashed
from fleet.credentials import REMOVED

_SCHEME = "bearer"
_UNKNOWN = ApiError(
    401,
    "no key or a wrong one: send the fleet's key as a bearer token, `fleet token --json` tells it",
    code="invalid_api_key",
)
_REMOVED = ApiError(
    401,
    "this Mac was removed from the fleet (`fleet kick`) and may ask nothing of it: `fleet token --rotate` on the "
    "coordinator makes a new token, and `fleet join` with that lets it in again",
    code=REMOVED,
)


class Access:
    """The keys that are valid now: the token's, which is another after a rotation, and one of each worker."""

    def __init__(self, key: str, account: Callable[[str], Account | None]) -> None:
        """`account` finds a worker by its id, also one that was removed; it is called from several threads."""
        if not key:
            raise ValueError("an empty key would let everybody in")
        self.key = key
        self._account = account

    def refusal(self, authorization: str | None) -> ApiError | None:
        """Why the header opens nothing, None when it does; takes the same time whatever secret it carries."""
        scheme, _, said = (authorization or "").partition(" ")
        if scheme.lower() != _SCHEME:
            return _UNKNOWN
        if hmac.compare_digest(said.strip().encode("utf-8", "replace"), self.key.encode()):
            return None
        wid, _, password = said.strip().partition(".")  # see `fleet.credentials.own_key`
        account = self._account(wid)
        if account is None or not hmac.compare_digest(hashed(password), account.password):
            return _UNKNOWN
        return _REMOVED if account.kicked else None


class Door:
    """ASGI around the whole application: without the key there is not even a 404."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a request on, or answers 401."""
        http = scope["type"] == "http"
        refused = self._access.refusal(Headers(scope=scope).get("authorization")) if http else None
        await (self._app if refused is None else refusal(refused))(scope, receive, send)
