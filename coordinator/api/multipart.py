"""An upload's form, read as it comes: its file goes straight to where it is kept, its few fields are short."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request

from coordinator.api.replies import ApiError
from coordinator.api.uploads import Arrival, Uploads

if TYPE_CHECKING:
    from python_multipart.multipart import MultipartCallbacks

#: The fields beside the file are a purpose and an expiry.
FIELD_BYTES = 4 << 10
FIELDS = 16
FILE_FIELD = "file"


class UploadForm:
    """A form with one file; a context, after which nothing is left of a file that was not kept."""

    def __init__(self, uploads: Uploads, boundary: bytes) -> None:
        self._uploads = uploads
        self._stack = ExitStack()
        self._header = bytearray()
        self._value = bytearray()
        self._headers: dict[bytes, bytes] = {}
        self._name = ""
        self._in_file = False
        self._fields: dict[str, bytearray] = {}
        self.arrival: Arrival | None = None
        self.ended = False
        try:
            self._parser = MultipartParser(boundary, self._callbacks())
        except FormParserError as error:
            raise broken() from error

    def __enter__(self) -> UploadForm:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def fields(self) -> Mapping[str, str]:
        """The fields that are no files."""
        return {name: value.decode("utf-8", "replace") for name, value in self._fields.items()}

    def feed(self, data: bytes) -> None:
        """Takes the next bytes of the form."""
        try:
            self._parser.write(data)
        except FormParserError as error:
            raise broken() from error

    def _callbacks(self) -> MultipartCallbacks:
        return {
            "on_part_begin": self._begin,
            "on_header_field": self._header_name,
            "on_header_value": self._header_value,
            "on_header_end": self._header_end,
            "on_headers_finished": self._open_part,
            "on_part_data": self._data,
            "on_end": self._end,
        }

    def _begin(self) -> None:
        self._headers = {}

    def _header_name(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end]

    def _header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _header_end(self) -> None:
        self._headers[bytes(self._header).lower()] = bytes(self._value)
        self._header, self._value = bytearray(), bytearray()

    def _open_part(self) -> None:
        _, options = parse_options_header(self._headers.get(b"content-disposition", b""))
        if b"name" not in options:
            raise broken()
        self._name = options[b"name"].decode("utf-8", "replace")
        self._in_file = self._name == FILE_FIELD
        if not self._in_file:
            self._fields[self._name] = bytearray()
            if len(self._fields) > FIELDS:
                raise ApiError(400, f"the form has over {FIELDS} fields", code="too_many_fields")
        elif self.arrival is not None:
            raise ApiError(400, "the form has several files: upload one at a time", param=FILE_FIELD)
        else:
            filename = options.get(b"filename", b"").decode("utf-8", "replace")
            self.arrival = self._stack.enter_context(self._uploads.receive(filename))

    def _data(self, data: bytes, start: int, end: int) -> None:
        if self._in_file:
            assert self.arrival is not None
            self.arrival.write(data[start:end])
            return
        field = self._fields[self._name]
        field += data[start:end]
        if len(field) > FIELD_BYTES:
            raise ApiError(400, f"over {FIELD_BYTES:,} bytes, expected a short field", param=self._name[:64])

    def _end(self) -> None:
        self.ended = True


def open_form(request: Request, uploads: Uploads) -> UploadForm:
    """The form that the request announces; ApiError when it announces something else."""
    kind, options = parse_options_header(request.headers.get("content-type", ""))
    if kind != b"multipart/form-data":
        raise ApiError(415, "expected multipart/form-data with a file", code="unsupported_media_type")
    if not options.get(b"boundary"):
        raise broken()
    return UploadForm(uploads, options[b"boundary"])


async def receive(request: Request, form: UploadForm) -> None:
    """Feeds the request's body to the form, off the event's loop because it is written to disk."""
    async for chunk in request.stream():
        await run_in_threadpool(form.feed, chunk)
    if not form.ended:
        raise broken()


def broken() -> ApiError:
    """The error for a form that breaks its own rules, or off."""
    return ApiError(400, "the multipart form is broken", code="invalid_form")
