"""Bytes to JSON values, line by line."""

import io
import json
import random
from typing import Any

import pytest

from coordinator.intake import jsonl
from coordinator.intake.formats import Record
from coordinator.intake.jsonl import read_jsonl
from coordinator.records import Source
from fleet.errors import UsageError


def read(data: bytes) -> list[Record]:
    return list(read_jsonl(io.BytesIO(data), "in"))


def test_lines_are_numbered_with_the_blank_ones_counted() -> None:
    assert [(record.source.line, record.value) for record in read(b"\n1\n \t\r\n2")] == [(2, 1), (4, 2)]


def test_a_byte_order_mark_may_begin_a_line_as_in_files_put_one_behind_the_other() -> None:
    found = read(b'\xef\xbb\xbf{"a": 1}\n\xef\xbb\xbf{"a": 2}\n\xef\xbb\xbf\r\n\xef\xbb\xbf')
    assert [(record.source.line, record.value, record.error) for record in found] == [
        (1, {"a": 1}, None),
        (2, {"a": 2}, None),
    ]


def test_behind_a_byte_order_mark_errors_are_those_of_the_line_without_it() -> None:
    begun, inside = read(b'\xef\xbb\xbf{"a": }\n{"a": \xef\xbb\xbf1}\n')
    assert begun.error == read(b'{"a": }')[0].error == "not JSON: Expecting value at column 7"
    assert (inside.error or "").startswith("not JSON")
    with pytest.raises(UsageError, match="one JSON array"):
        read(b"\xef\xbb\xbf[\n1]\n")


@pytest.mark.parametrize("constant", [b"NaN", b"Infinity", b"-Infinity"])
def test_constants_that_json_does_not_have_are_refused(constant: bytes) -> None:
    (record,) = read(b'{"temperature": ' + constant + b"}")
    assert record.error == f"not JSON: found {constant.decode()}, expected a number"


def test_of_a_key_given_twice_the_last_wins() -> None:
    assert read(b'{"a": 1, "a": 2}')[0].value == {"a": 2}


def test_deep_nesting_is_an_error_and_the_next_line_is_intact() -> None:
    deep, after = read(b"[" * 100_000 + b"]" * 100_000 + b"\n1\n")
    assert (deep.error or "").startswith("JSON nested too deeply")
    assert after.value == 1


def test_half_a_surrogate_pair_is_refused_and_a_whole_one_is_a_character() -> None:
    half, whole = read(b'"\\ud83d"\n"\\ud83d\\ude00"\n')
    assert "surrogate" in (half.error or "")
    assert whole.value == "\U0001f600"


def test_an_overlong_number_is_refused() -> None:
    assert (read(b"1" * 5000)[0].error or "").startswith("not JSON")


def test_a_line_over_the_limit_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsonl, "MAX_LINE_BYTES", 1 << 20)
    long, after = read(b'"' + b"a" * (3 << 20) + b'"\n1\n')
    assert long.error == "a line of over 1 MB, expected a request"
    assert (after.value, after.source.line) == (1, 2)


@pytest.mark.parametrize(
    "data",
    [b'[\n  {"prompt": "a"},\n', b'\n [{"prompt": "a"},\n{"prompt": "b"}]', b'[{"prompt": "a"}, {"prompt": "b"}]\n\n'],
)
def test_one_array_is_refused_with_the_command_that_makes_lines_of_it(data: bytes) -> None:
    with pytest.raises(UsageError, match=r"in is one JSON array, expected a JSON object a line: jq -c '\.\[\]' makes"):
        read(data)


def test_one_object_over_several_lines_is_refused() -> None:
    with pytest.raises(UsageError, match="one JSON object over several lines"):
        read(b'{\n  "prompt": "a"\n}\n')


def test_a_list_in_front_of_other_lines_is_a_bad_line_only() -> None:
    assert [record.value for record in read(b'[{"prompt": "a"}]\n{"prompt": "b"}\n')][1] == {"prompt": "b"}
    assert read(b'{"prompt": \n{"prompt": "b"}\n')[1].error is None


@pytest.mark.parametrize("depth", [99, 101, 450, 983, 990, 1200])
@pytest.mark.parametrize(("opens", "closes"), [(b"[", b"]"), (b'{"a":', b"}")])
def test_the_same_depth_is_refused_wherever_python_gives_up(depth: int, opens: bytes, closes: bytes) -> None:
    # 982 to 984 deep passed here, and ended the whole run when its answers were written.
    value = opens * depth + b"1" + closes * depth
    (record,) = read(b'{"prompt": "x", "deep": ' + value + b"}\n")
    assert (record.error is None) is (depth < 100)
    assert (record.value is None) is (depth >= 100)


def test_many_lists_beside_each_other_are_not_deep() -> None:
    (record,) = read(json.dumps({"prompt": [[1, 2]] * 500, "text": "[{" * 500}).encode() + b"\n")
    assert record.error is None


@pytest.mark.parametrize("seed", range(20))
def test_brackets_are_sought_as_they_would_be_counted(seed: int) -> None:
    line = bytes(random.Random(seed).choices(b'[{]}"a', k=60))
    opened = line.count(b"[") + line.count(b"{")
    may_be = [jsonl._may_be_deeper(line, depth) for depth in range(60)]
    assert may_be == [opened > depth for depth in range(60)], f"seed {seed}: {line!r}"


#: Numbers, strings and shapes that JSON readers disagree about, and pieces to break them with.
DOUBTFUL = (
    b'{"a":1,"b":2,"a":[]}', b"-0", b"-0.0", b"01", b"-", b"1.", b".5", b"1E400", b"1e-400", b"18446744073709551616",
    b"123456789012345678901234567890", b"9" * 4301, b"9007199254740993", b"5e-324", b"1.7976931348623159e308", b"0.1",
    b'"\\ud800"', b'"\\udc00"', b'"\\ud83d\\u0041"', b'{"\\uD800":1}', b'"\\ud83d\\ude00"', b'"\xed\xa0\x80"',
    b'"a\tb"', b'"a\x00b"', b'"\\u0000"', b'"\\x"', b'"\xc0\x80"', b"{}x", b"{}\x0c", b"\xc2\xa0{}", b"[1,]",
    b'{"a":1,}', b"{'a':1}", b"True", b"nul", b"NaN", b"+1", b"/**/1", b"[" * 101 + b"]" * 101, b'"',
)  # fmt: skip
BREAKERS = (b'"', b"\\", b"\\ud83d", b"1", b"-", b".", b"e", b"{", b"]", b",", b":", b"\t", b"\xc3", b"null", b"1e400")


HERE = Source(file="in", line=1)


def broken(draw: random.Random) -> bytes:
    """Two doubtful values in one, with a piece or two put in anywhere."""
    data = bytearray(b'{"k":[' + draw.choice(DOUBTFUL) + b"," + draw.choice(DOUBTFUL) + b"]}")
    for _ in range(draw.randrange(3)):
        at = draw.randrange(len(data))
        data[at : at + draw.randrange(3)] = draw.choice(BREAKERS)
    return bytes(data)


def test_lines_are_read_as_pythons_own_json_reads_them(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(20_000)
    data = [*DOUBTFUL, *(broken(draw) for _ in range(20_000))]
    quick = [repr(jsonl._decode(line, HERE)) for line in data]  # tells 1 from 1.0, 0.0 from -0.0, and orders keys
    monkeypatch.setattr(jsonl, "_QUICK", Refusing())
    slow = [repr(jsonl._decode(line, HERE)) for line in data]
    assert [pair for pair in zip(data, quick, slow, strict=True) if pair[1] != pair[2]] == []
    assert sum("error=None" in record for record in quick) > 100


class Refusing:
    """Reads nothing, which leaves everything to Python's own."""

    def decode(self, line: bytes) -> Any:
        raise ValueError(line)
