"""What is encoded comes back equal, and nothing else is taken for a message."""

import dataclasses
import random
import types
from enum import Enum
from typing import Any, Union, get_args, get_origin, get_type_hints

import msgpack
import pytest

from fleet.codec import MAX_BYTES, VERSION, RqSerializer, decode, encode
from fleet.errors import DecodeError
from fleet.messages import TAGS, Cancel, Figures, Finished, Pulse, Returned, RowResult


def make(kind: Any, rng: random.Random) -> Any:
    """A random value of an annotation."""
    if dataclasses.is_dataclass(kind):
        hints = get_type_hints(kind)
        return kind(**{f.name: make(hints[f.name], rng) for f in dataclasses.fields(kind)})  # type: ignore[operator]
    if get_origin(kind) is tuple:
        args = get_args(kind)
        if args[-1] is Ellipsis:
            return tuple(make(args[0], rng) for _ in range(rng.randint(0, 3)))
        return tuple(make(arg, rng) for arg in args)
    if get_origin(kind) in (Union, types.UnionType):
        inner = next(arg for arg in get_args(kind) if arg is not type(None))
        return rng.choice([None, make(inner, rng)])
    if isinstance(kind, type) and issubclass(kind, Enum):
        return rng.choice(list(kind))
    makers = {
        int: lambda: rng.randint(-(2**40), 2**60),
        float: lambda: rng.random(),
        str: lambda: "é\u2028" * rng.randint(0, 3),
        bytes: lambda: rng.randbytes(rng.randint(0, 9)),
        bool: lambda: rng.random() < 0.5,
    }
    return makers[kind]()


@pytest.mark.parametrize("kind", TAGS.values(), ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("seed", range(5))
def test_every_message_comes_back_equal(kind: type, seed: int) -> None:
    message = make(kind, random.Random(seed))
    assert decode(encode(message)) == message


@pytest.mark.parametrize(
    ("items", "says"),
    [
        ([VERSION + 1, 6, [1]], "wire version"),
        ([VERSION, 99, [1]], "unknown message tag"),
        ([VERSION, True, [1]], "expected|unknown"),
        ([VERSION, 6], "expected 1 fields"),
        ([VERSION, 6, [1], 2], "expected 1 fields"),
        ([VERSION, 6, ["1"]], "expected int, found str"),
        ([VERSION, 6, [True]], "expected int, found bool"),
        ([VERSION, 6, 1], "expected a list"),
        ([VERSION, 2, [[1, "t", "nonsense", 1, 1, None, "", b""]]], "is no Finish"),
        ([VERSION], "expected \\[version"),
        ({"a": 1}, "expected \\[version"),
    ],
)
def test_anything_else_is_a_decode_error(items: object, says: str) -> None:
    with pytest.raises(DecodeError, match=says):
        decode(msgpack.packb(items))


@pytest.mark.parametrize("seed", range(50))
def test_damaged_bytes_never_raise_anything_but_a_decode_error(seed: int) -> None:
    rng = random.Random(seed)
    data = bytearray(encode(make(Finished, rng)) + encode(Cancel(rows=(1, 2))))
    for _ in range(rng.randint(1, 4)):
        data[rng.randrange(len(data))] = rng.randrange(256)
    try:
        message = decode(bytes(data[: rng.randint(0, len(data))]))
    except DecodeError:
        return
    assert type(message) in TAGS.values()


def test_a_message_over_the_limit_is_refused_unread() -> None:
    with pytest.raises(DecodeError, match="over the limit"):
        decode(b"\x00" * (MAX_BYTES + 1))


def test_a_pickle_is_no_rq_payload() -> None:
    with pytest.raises(DecodeError):
        RqSerializer.loads(b"\x80\x04\x95\x1c\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x94.")


def test_a_float_field_takes_a_whole_number() -> None:
    result = RowResult(id=1, text="", finish="stop", input_tokens=1, output_tokens=1)  # type: ignore[arg-type]
    assert result.error is None


@pytest.mark.parametrize("number", [1 << 63, (1 << 64) - 1, -(1 << 63)])
def test_a_whole_number_that_no_column_holds_is_no_message(number: int) -> None:
    """SQLite raised an OverflowError of it, which ended the coordinator."""
    with pytest.raises(DecodeError, match="none of ours"):
        decode(encode(Returned(rows=(number,))))


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
def test_a_fraction_that_is_none_is_no_message(number: float) -> None:
    with pytest.raises(DecodeError, match="none of ours"):
        decode(encode(Pulse(running=(), waiting=0, figures=Figures(decode_s=number))))
