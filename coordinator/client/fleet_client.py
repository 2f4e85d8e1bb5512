"""Asks a coordinator's API. The only user of httpx."""

from __future__ import annotations

import io
import json
import secrets
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import IO, Any, Self

import httpx

from coordinator.client.parcels import Parcel
from coordinator.client.whereabouts import WAYS, Place
from fleet import pin
from fleet.credentials import REMOVED
from fleet.errors import AuthError, FleetError, NoCoordinatorError, StorageError, UsageError
from fleet.token import WHERE

#: An answer may wait for the controller's loop, which is given 30 s, and for a whole file on its way to disk.
READ_S = 120.0
CONNECT_S = 5.0
#: Answers are written whole before the first byte is sent; those of a large job take minutes.
ANSWERS_S = 1800.0
_STORAGE = frozenset({413, 507})
_OLD_KEY = (
    "the coordinator does not accept this Mac's key or token any more: `fleet join` again, or take the present token; "
    f"{WHERE}"
)


class FleetClient:
    """One coordinator that was proved to be the token's; a context."""

    def __init__(self, base_url: str, key: str, certificate: str | None = None) -> None:
        """`certificate` (PEM) is the only one trusted; None for plain HTTP on loopback."""
        self.base_url = base_url
        self._http = httpx.Client(
            base_url=base_url,
            headers={"Authorization": f"Bearer {key}"},
            verify=pin.context(certificate) if certificate else True,
            timeout=httpx.Timeout(READ_S, connect=CONNECT_S),
            trust_env=False,  # no proxy sees what is asked
        )

    @classmethod
    def reach(cls, place: Place) -> Self:
        """The coordinator at the first address where it is; nothing is sent before its certificate was found right.

        Raises AuthError where only others answer, NoCoordinatorError where nobody does.
        """
        if place.plain:
            return cls(f"http://{place.addresses[0]}", place.key)
        said: list[str] = []
        impostors = 0
        for address in place.addresses:
            try:
                certificate = pin.meet(address, place.token.fingerprint)
            except pin.ImpostorError as error:
                said, impostors = [*said, str(error)], impostors + 1
            except pin.UnreachableError as error:
                said.append(str(error))
            else:
                return cls(f"https://{address}", place.key, certificate)
        if impostors:
            raise AuthError(f"{'; '.join(said)}: nothing was sent there; is the token of this fleet? {WHERE}")
        why = f"the fleet is not to be reached ({'; '.join(said)}): is `fleet up` running there?"
        raise NoCoordinatorError(f"{why} Else {WAYS}{place.hint}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def get(self, path: str, **query: str) -> Any:
        """The JSON at `path`."""
        with _translated():
            return _value(self._http.get(path, params=query))

    def post(self, path: str, body: object = None) -> Any:
        """The JSON that `path` answers to `body`."""
        with _translated():
            return _value(self._http.post(path, json={} if body is None else body))

    def delete(self, path: str) -> Any:
        """The JSON that a deletion answers."""
        with _translated():
            return _value(self._http.delete(path))

    def upload(self, parcel: Parcel, on_bytes: Callable[[int], None]) -> str:
        """Sends a file as it is read; its id. `on_bytes` hears of each block."""
        boundary = secrets.token_hex(16)
        headers = {"Content-Type": f"multipart/form-data; boundary={boundary}"}
        with _translated():
            reply = self._http.post("/v1/files", content=_form(boundary, parcel, on_bytes), headers=headers)
            return str(_value(reply)["id"])

    @contextmanager
    def opened(self, path: str, **query: str) -> Iterator[tuple[IO[bytes], dict[str, int]]]:
        """What is at `path` as a stream, and the counts told beside it."""
        timeout = httpx.Timeout(ANSWERS_S, connect=CONNECT_S)
        with _translated(), self._http.stream("GET", path, params=query, timeout=timeout) as reply:
            if reply.is_error:
                reply.read()
                _value(reply)
            counts = {name: int(reply.headers.get(f"fleet-{name}", 0)) for name in ("done", "failed", "open")}
            yield io.BufferedReader(_Body(reply.iter_bytes())), counts


class _Body(io.RawIOBase):
    """An answer's blocks as a file."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self._blocks = blocks
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Fills `buffer` as far as one block goes."""
        while not self._rest:
            block = next(self._blocks, None)
            if block is None:
                return 0
            self._rest = memoryview(block)
        count = min(len(buffer), len(self._rest))
        buffer[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count


def _form(boundary: str, parcel: Parcel, on_bytes: Callable[[int], None]) -> Iterator[bytes]:
    """A multipart form, in pieces: the purpose and the file."""
    name = json.dumps(parcel.name, ensure_ascii=False).encode("utf-8", "replace")
    start = f"--{boundary}\r\nContent-Disposition: form-data; "
    yield f'{start}name="purpose"\r\n\r\nbatch\r\n{start}name="file"; filename='.encode() + name
    yield b"\r\nContent-Type: application/octet-stream\r\n\r\n"
    yield from _told(parcel.blocks, on_bytes)
    yield f"\r\n--{boundary}--\r\n".encode()


def _told(blocks: Iterable[bytes], on_bytes: Callable[[int], None]) -> Iterator[bytes]:
    for block in blocks:
        yield block
        on_bytes(len(block))


def _value(reply: httpx.Response) -> Any:
    """The JSON of an answer; the error that it tells of."""
    if not reply.is_error:
        try:
            return reply.json()
        except ValueError as error:
            raise FleetError("the coordinator's answer is not JSON: is that an mlx-fleet?") from error
    try:
        told = reply.json()["error"]
        message, code = str(told["message"]), told.get("code")
    except (ValueError, LookupError, TypeError, AttributeError):
        message, code = f"the coordinator answers {reply.status_code} and no reason", None
    if reply.status_code == 401:
        raise AuthError(message if code == REMOVED else _OLD_KEY)
    if reply.status_code in _STORAGE:
        raise StorageError(message)
    raise UsageError(message) if reply.status_code < 500 else FleetError(message)


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except httpx.TransportError as error:
        raise NoCoordinatorError(
            f"the coordinator does not answer ({type(error).__name__}): is `fleet up` running there?"
        ) from error
