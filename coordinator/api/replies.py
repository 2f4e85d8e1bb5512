"""What the API answers: JSON, and OpenAI's error bodies `{error: {message, type, param, code}}`."""

from __future__ import annotations

import json
import logging
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from coordinator.api.uploads import NoRoomError
from coordinator.intake.requests import CHAT_URL, COMPLETIONS_URL, EMBEDDINGS_URL
from fleet.errors import FleetError, ModelError, RequestError, StorageError, UsageError

log = logging.getLogger(__name__)

#: Longest body of a request that is no upload, bytes; metadata may carry a long prompt template.
BODY_BYTES = 1 << 20
_INVALID = "invalid_request_error"
_SERVER = "server_error"


class ApiError(Exception):
    """Raised when a request is refused; becomes its answer."""

    def __init__(self, status: int, message: str, *, code: str | None = None, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.param = param


def refusal(error: ApiError) -> Response:
    """The answer that an error is."""
    kind = _INVALID if error.status < 500 else _SERVER
    body = {"message": error.message, "type": kind, "param": error.param, "code": error.code}
    headers = {"WWW-Authenticate": "Bearer"} if error.status == 401 else None
    return JSONResponse({"error": body}, error.status, headers)


def missing(what: str, id: object) -> ApiError:
    """The error for a thing that is not there."""
    return ApiError(404, f"there is no {what} {id}", code="not_found", param=what)


def wrong(param: str, message: str, code: str | None = None) -> ApiError:
    """The error for a field that cannot be worked on."""
    return ApiError(400, f"{param}: {message}", code=code, param=param)


async def body_of(request: Request) -> dict[str, Any]:
    """The request's JSON object; an empty body is an empty object. ApiError for anything else."""
    kind = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    data = bytearray()
    async for chunk in request.stream():
        data += chunk
        if len(data) > BODY_BYTES:
            raise ApiError(413, f"a body of over {BODY_BYTES:,} bytes: only uploads may be longer", code="too_large")
    if data and kind != "application/json":
        raise ApiError(415, f"the body is {kind}, expected application/json", code="unsupported_media_type")
    try:
        value = json.loads(data or b"{}")
        json.dumps(value, ensure_ascii=False).encode()  # fails for half a character
    except (ValueError, RecursionError) as error:
        raise ApiError(400, "the body is not JSON", code="invalid_json") from error
    if not isinstance(value, dict):
        raise ApiError(400, "the body is no JSON object", code="invalid_json")
    return value


def of_refusal(_: Request, error: Exception) -> Response:
    """Answers an ApiError."""
    assert isinstance(error, ApiError)
    return refusal(error)


def of_fleet(request: Request, error: Exception) -> Response:
    """Answers an error of ours: the asker's, the disk's, or the coordinator's, whose folders are not told."""
    text = str(error).replace(request.app.state.folder, "the coordinator's state folder")
    if isinstance(error, NoRoomError):
        return refusal(ApiError(413, text, code="no_room"))
    if isinstance(error, StorageError):
        return refusal(ApiError(507, text, code="storage"))
    if isinstance(error, UsageError | ModelError | RequestError):
        return refusal(ApiError(400, text, code="invalid_request"))
    assert isinstance(error, FleetError)
    return refusal(ApiError(503, text, code="unavailable"))


def of_http(request: Request, error: Exception) -> Response:
    """Answers what routing finds: no such path, no such method."""
    assert isinstance(error, HTTPException)
    if error.status_code != 404:
        return refusal(ApiError(error.status_code, error.detail))
    batched = request.url.path in (CHAT_URL, COMPLETIONS_URL, EMBEDDINGS_URL)
    told = "answered in batches only: send a file, then POST /v1/batches" if batched else "not here"
    return refusal(ApiError(404, f"{request.url.path} is {told}", code="not_found"))


def of_bug(request: Request, error: Exception) -> Response:
    """Answers what nobody expected; the log has it, the asker does not."""
    log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return refusal(ApiError(500, "the coordinator failed on this request: its log says why", code="internal"))


def of_silence(_: Request, __: Exception) -> Response:
    """Answers a client that went away, which nobody reads."""
    return Response(status_code=499)


#: What becomes of an exception inside a request.
HANDLERS: dict[Any, Any] = {
    ApiError: of_refusal,
    FleetError: of_fleet,
    HTTPException: of_http,
    ClientDisconnect: of_silence,
    Exception: of_bug,
}
