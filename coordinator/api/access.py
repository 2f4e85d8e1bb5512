"""Lets in only who says the fleet's key, whatever they ask for."""

from __future__ import annotations

import hmac

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from coordinator.api.replies import ApiError, refusal

_SCHEME = "bearer"


class Access:
    """The key that is valid now; a new token brings a new one."""

    def __init__(self, key: str) -> None:
        if not key:
            raise ValueError("an empty key would let everybody in")
        self.key = key

    def granted(self, authorization: str | None) -> bool:
        """Whether the header carries the key; takes the same time whatever it carries."""
        scheme, _, said = (authorization or "").partition(" ")
        same = hmac.compare_digest(said.strip().encode("utf-8", "replace"), self.key.encode())
        return same and scheme.lower() == _SCHEME


class Door:
    """ASGI around the whole application: without the key there is not even a 404."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a request on, or answers 401."""
        if scope["type"] != "http" or self._access.granted(Headers(scope=scope).get("authorization")):
            await self._app(scope, receive, send)
            return
        message = "no key or a wrong one: send the fleet's key as a bearer token, `fleet token --json` tells it"
        await refusal(ApiError(401, message, code="invalid_api_key"))(scope, receive, send)
