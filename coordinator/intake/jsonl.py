"""JSON lines: bytes are split at newlines only and decoded strictly; a bad line is a record with an error.

A file that is one JSON value over all its lines, or one list on its only line, is refused as a whole.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import IO, Any, NoReturn

import msgspec

from coordinator.intake.formats import Record, not_utf8
from coordinator.records import Source
from fleet.errors import UsageError

#: A longer line is refused unread, so that one line cannot take all memory.
MAX_LINE_BYTES = 256 << 20
#: Deeper values are refused: Python's own JSON gives up near 1,000, and not at the same depth everywhere.
MAX_DEPTH = 100
_TOO_DEEP = f"JSON nested too deeply, expected at most {MAX_DEPTH} lists and objects inside each other"
_BOM = b"\xef\xbb\xbf"


def read_jsonl(stream: IO[bytes], name: str) -> Iterator[Record]:
    """A record for each line that is not blank; `name` stands for the stream in errors. UsageError when all of it is
    one JSON value."""
    number = count = 0
    one_list = False
    while line := stream.readline(MAX_LINE_BYTES):
        number += 1
        source = Source(file=name, line=number)
        if len(line) == MAX_LINE_BYTES and not line.endswith(b"\n"):
            _skip_line(stream)
            yield Record(source=source, error=f"a line of over {MAX_LINE_BYTES >> 20} MB, expected a request")
            continue
        if line and not line.isspace():
            record = _decode(line, source)
            if record.error is not None and line.startswith(_BOM):  # where a file begins, also behind another
                line = line.removeprefix(_BOM)
                if not line or line.isspace():
                    continue
                record = _decode(line, source)
            count += 1
            if count == 1:
                _check_start(line, record, name)
                one_list = isinstance(record.value, list)
            yield record
    if one_list and count == 1:
        raise _one_value("array", "jq -c '.[]'", name)


def _check_start(line: bytes, record: Record, name: str) -> None:
    """Raises UsageError when the first line only begins a JSON value that goes on below."""
    text = line.strip()
    if text == b"[" or (record.error is not None and text.startswith(b"[") and text[1:].lstrip().startswith(b"{")):
        raise _one_value("array", "jq -c '.[]'", name)
    if text == b"{":
        raise _one_value("object over several lines", "jq -c .", name)


def _one_value(what: str, command: str, name: str) -> UsageError:
    return UsageError(f"{name} is one JSON {what}, expected a JSON object a line: {command} makes them")


def _skip_line(stream: IO[bytes]) -> None:
    while (rest := stream.readline(1 << 20)) and not rest.endswith(b"\n"):
        pass


def _decode(line: bytes, source: Source) -> Record:
    try:
        value = _QUICK.decode(line)
    except (ValueError, RecursionError):  # seldom, and seldom right: Python's own says in which way it is wrong
        return _decode_slowly(line, source)
    return _shallow(value, line, source)


def _decode_slowly(line: bytes, source: Source) -> Record:
    try:
        value = _DECODER.decode(line.rstrip(b"\r\n").decode())
        # half a surrogate pair comes this far, and no tokenizer takes it
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeDecodeError as error:
        return Record(source=source, error=not_utf8(error))
    except UnicodeEncodeError:
        return Record(source=source, error="not Unicode text: found half of a surrogate pair (\\ud800 to \\udfff)")
    except json.JSONDecodeError as error:
        return Record(source=source, error=f"not JSON: {error.msg} at column {error.colno}")
    except ValueError as error:
        return Record(source=source, error=f"not JSON: {error}")
    except RecursionError:
        return Record(source=source, error=_TOO_DEEP)
    return _shallow(value, line, source)


def _shallow(value: Any, line: bytes, source: Source) -> Record:
    """The record of a value that was read; an error where it is nested too deeply."""
    if _may_be_deeper(line, MAX_DEPTH) and _deeper(value, MAX_DEPTH):
        return Record(source=source, error=_TOO_DEEP)
    return Record(source=source, value=value)


def _may_be_deeper(line: bytes, depth: int) -> bool:
    """Whether so many lists and objects open in `line`; sought, which for 2 KB takes a third of counting them."""
    opened = 0
    for bracket in (b"[", b"{"):
        at = line.find(bracket)
        while at >= 0:
            opened += 1
            if opened > depth:
                return True
            at = line.find(bracket, at + 1)
    return False


def _deeper(value: Any, depth: int) -> bool:
    """Whether lists and objects lie more than `depth` deep in `value`, itself included."""
    level = [value]
    for _ in range(depth + 1):
        items = [item for box in level for item in (box.values() if isinstance(box, dict) else box)]
        level = [item for item in items if isinstance(item, dict | list)]
    return bool(level)


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"found {constant}, expected a number")


_DECODER: json.JSONDecoder = json.JSONDecoder(parse_constant=_refuse)
#: Takes nothing that the other refuses, makes the same of it, and needs no search for halves of surrogate pairs, which
#: it refuses: 1.7 us for 2.5 KB, where the other takes 4.3 and the search 1.9.
_QUICK: msgspec.json.Decoder[Any] = msgspec.json.Decoder()


def dump(value: Any) -> str:
    """Compact JSON; ValueError for a number that JSON cannot say."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
