"""Messages to bytes and back: msgpack `[version, tag, fields...]`, decoded strictly. The only user of msgpack."""

from __future__ import annotations

import secrets
import types
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, Union, get_args, get_origin, get_type_hints

import msgpack

from fleet.errors import DecodeError
from fleet.messages import TAGS, Message

#: Raised by one whenever a message's fields change; both sides must agree.
VERSION = 3
#: Larger messages are refused unread; a window is at most 32 MB.
MAX_BYTES = 48 << 20
#: No number of ours is larger; SQLite takes none that is twice as large, and sums of figures must stay numbers.
LARGEST = 1 << 62

_TAG_OF = {kind: tag for tag, kind in TAGS.items()}


def new_epoch() -> str:
    """An epoch for a broker that was just started: never used before, and tells the version that is spoken there."""
    return f"{VERSION}-{secrets.token_hex(8)}"


def is_understood(epoch: str) -> bool:
    """Whether messages at a broker of this epoch are of our version."""
    version, dash, _ = epoch.partition("-")
    return not dash or not version.isdigit() or int(version) == VERSION


def encode(message: Message) -> bytes:
    """The message's bytes."""
    packed: bytes = msgpack.packb([VERSION, _TAG_OF[type(message)], *_values(message)], use_bin_type=True)
    return packed


def decode(data: bytes) -> Message:
    """The message in `data`; DecodeError when it is anything else."""
    if len(data) > MAX_BYTES:
        raise DecodeError(f"a message of {len(data)} bytes is over the limit of {MAX_BYTES}")
    try:
        items = msgpack.unpackb(data, raw=False, use_list=True, strict_map_key=True)
    except (ValueError, msgpack.exceptions.UnpackException) as error:
        raise DecodeError(f"not a message: {error}") from error
    if not isinstance(items, list) or len(items) < 2:
        raise DecodeError("not a message: expected [version, tag, fields]")
    version, tag, *values = items
    if version != VERSION:
        raise DecodeError(
            f"message of wire version {version!r}, this mlx-fleet speaks {VERSION}: update the older side"
        )
    kind = TAGS.get(tag) if isinstance(tag, int) else None
    if kind is None:
        raise DecodeError(f"unknown message tag {tag!r}")
    message: Message = _reader(kind)(values, kind.__name__)
    return message


def _values(message: object) -> list[Any]:
    return [_plain(getattr(message, f.name)) for f in fields(message)]  # type: ignore[arg-type]


def _plain(value: object) -> Any:
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if is_dataclass(value):
        return _values(value)
    return value


Reader = Callable[[Any, str], Any]


@cache
def _reader(kind: Any) -> Reader:
    """A function that checks a plain value against the annotation `kind` and builds it."""
    if is_dataclass(kind) and isinstance(kind, type):
        return _record_reader(kind)
    if get_origin(kind) is tuple:
        return _tuple_reader(get_args(kind))
    if get_origin(kind) in (Union, types.UnionType):
        return _optional_reader(get_args(kind))
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _enum_reader(kind)
    return _scalar_reader(kind)


def _record_reader(kind: type) -> Reader:
    hints = get_type_hints(kind)
    names = [f.name for f in fields(kind)]
    readers = [(name, _reader(hints[name])) for name in names]

    def read(value: Any, where: str) -> Any:
        if not isinstance(value, list) or len(value) != len(readers):
            raise DecodeError(f"{where}: expected {len(readers)} fields of {kind.__name__}")
        return kind(
            **{name: reader(item, f"{where}.{name}") for (name, reader), item in zip(readers, value, strict=True)}
        )

    return read


def _tuple_reader(args: tuple[Any, ...]) -> Reader:
    if args[-1] is Ellipsis:
        each = _reader(args[0])

        def read_many(value: Any, where: str) -> Any:
            if not isinstance(value, list):
                raise DecodeError(f"{where}: expected a list")
            return tuple([each(item, where) for item in value])

        return read_many
    readers = [_reader(arg) for arg in args]

    def read(value: Any, where: str) -> Any:
        if not isinstance(value, list) or len(value) != len(readers):
            raise DecodeError(f"{where}: expected {len(readers)} items")
        return tuple([reader(item, where) for reader, item in zip(readers, value, strict=True)])

    return read


def _optional_reader(args: tuple[Any, ...]) -> Reader:
    (kind,) = [arg for arg in args if arg is not type(None)]
    inner = _reader(kind)
    return lambda value, where: None if value is None else inner(value, where)


def _enum_reader(kind: type[Enum]) -> Reader:
    def read(value: Any, where: str) -> Any:
        try:
            return kind(value)
        except ValueError as error:
            raise DecodeError(f"{where}: {value!r} is no {kind.__name__}") from error

    return read


def _scalar_reader(kind: type) -> Reader:
    accepted = (int, float) if kind is float else (kind,)

    def read(value: Any, where: str) -> Any:
        if type(value) not in accepted:
            raise DecodeError(f"{where}: expected {kind.__name__}, found {type(value).__name__}")
        if isinstance(value, int | float) and not -LARGEST <= value <= LARGEST:  # NaN is not, either
            raise DecodeError(f"{where}: a number that is none of ours")
        return value

    return read


class RqSerializer:
    """What RQ stores a job's call and meta with: plain msgpack values, so that nothing read can run code."""

    @staticmethod
    def dumps(value: Any) -> bytes:
        packed: bytes = msgpack.packb(value, use_bin_type=True)
        return packed

    @staticmethod
    def loads(data: bytes) -> Any:
        try:
            return msgpack.unpackb(data, raw=False, use_list=False, strict_map_key=True)
        except (ValueError, msgpack.exceptions.UnpackException) as error:
            raise DecodeError(f"not an RQ payload of ours: {error}") from error
