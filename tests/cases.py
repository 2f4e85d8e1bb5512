"""Hostile backlogs, and what intake must make of each."""

from __future__ import annotations

import json
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One file and what it must give."""

    name: str
    why: str
    data: bytes
    #: requests without an error; with the errors they are the lines that are not blank
    rows: int
    #: lines, from 1, that are errors, each with a piece of its sentence
    errors: tuple[tuple[int, str], ...] = ()
    #: True when the whole file is refused before any work
    refused: bool = False
    #: True when it takes the ledger to see the error
    by_ledger: bool = False


def chat(custom_id: str, text: str, **body: object) -> dict[str, object]:
    """An OpenAI batch line of one user message."""
    return {
        "custom_id": custom_id,
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": {"messages": [{"role": "user", "content": text}], "max_tokens": 8, **body},
    }


def line(value: object) -> bytes:
    """`value` as one line, without its end."""
    return json.dumps(value, ensure_ascii=False).encode()


def lines(*items: bytes) -> bytes:
    """Lines with their ends."""
    return b"".join(item + b"\n" for item in items)


OK = [line(chat(f"r{number}", f"Name a colour. {number}")) for number in range(4)]
_EMPTY_PROMPT = {"custom_id": "e", "method": "POST", "url": "/v1/completions", "body": {"prompt": "", "max_tokens": 4}}
_NO_MESSAGES = {"custom_id": "m", "method": "POST", "url": "/v1/chat/completions", "body": {"messages": []}}
_BAD_BYTE = line(chat("u", "cafe")).replace(b"cafe", b"caf\xe9")
#: A family of three joined by ZWJ, and words whose letters are more than one code point.
_GLYPHS = "\U0001f469\u200d\U0001f469\u200d\U0001f467 \u4f60\u597d \u0928\u092e\u0938\u094d\u0924\u0947"
_TEMPLATES = ('{"a": 1}', "lone } brace", "100% {name} {{x}} %s", "<b>$HOME `id`</b>")

CASES = (
    Case(name="bom", why="a byte order mark before the first line", data=b"\xef\xbb\xbf" + lines(*OK), rows=4),
    Case(name="crlf", why="CRLF ends", data=b"\r\n".join(OK) + b"\r\n", rows=4),
    Case(name="no_final_newline", why="the last line has no end", data=b"\n".join(OK), rows=4),
    Case(
        name="blank_lines",
        why="blank lines are neither rows nor errors",
        data=b"\n\n" + b"\n\n".join(OK) + b"\n   \n",
        rows=4,
    ),
    Case(
        name="unicode_separators",
        why="U+2028, U+2029 and U+0085 end no line",
        data=lines(OK[0], line(chat("sep", "one\u2028two\u2029three\u0085four")), OK[1]),
        rows=3,
    ),
    Case(
        name="bad_json_middle",
        why="one truncated line",
        data=lines(OK[0], b'{"custom_id": "x", ', OK[1]),
        rows=2,
        errors=((2, "not JSON"),),
    ),
    Case(
        name="not_an_object",
        why="JSON that is no request",
        data=lines(OK[0], b"[1,2,3]", b'"hello"', b"null", line({**chat("b", "x"), "body": "text"}), OK[1]),
        rows=2,
        errors=((2, "found a list"), (3, 'found "hello"'), (4, "found null"), (5, 'body: found "text"')),
    ),
    Case(
        name="bad_utf8",
        why="one byte that is not UTF-8",
        data=lines(OK[0], _BAD_BYTE, OK[1]),
        rows=2,
        errors=((2, "not UTF-8: found byte 0xE9"),),
    ),
    Case(
        name="duplicate_custom_id",
        why="an id used twice: the error names both lines, and answers are never mixed",
        data=lines(OK[0], OK[1], line(chat("r0", "Another question")), OK[2]),
        rows=3,
        errors=((3, "r0"),),
        by_ledger=True,
    ),
    Case(
        name="same_prompt_many_ids",
        why="one prompt under 50 ids at temperature 0 is computed once",
        data=lines(*(line(chat(f"s{number}", "Name a colour.", temperature=0)) for number in range(50))),
        rows=50,
    ),
    Case(
        name="empty_prompt",
        why="nothing to complete",
        data=lines(OK[0], line(_EMPTY_PROMPT), line(_NO_MESSAGES), OK[1]),
        rows=2,
        errors=((2, "nothing to complete"), (3, "nothing to complete")),
    ),
    Case(
        name="too_long",
        why="a prompt over the context is never cut; the error gives count and limit",
        data=lines(OK[0], line(chat("long", "word " * 60_000)), OK[1]),
        rows=2,
        errors=((2, "expected fewer than 2,048"),),
    ),
    Case(
        name="big_line",
        why="a line of 15 MB",
        data=lines(OK[0], line(chat("big", "a" * 15_000_000)), OK[1]),
        rows=2,
        errors=((2, "tokens, expected fewer than 2,048"),),
    ),
    Case(
        name="braces",
        why="text that looks like a template is only text",
        data=lines(*(line(chat(f"t{number}", text)) for number, text in enumerate(_TEMPLATES))),
        rows=4,
    ),
    Case(
        name="emoji",
        why="glyphs of several code points",
        data=lines(line(chat("emoji", f"Repeat: {_GLYPHS}"))),
        rows=1,
    ),
    Case(
        name="missing_fields",
        why="no body; no method and url",
        data=lines(
            line({"custom_id": "a", "method": "POST", "url": "/v1/chat/completions"}),
            line({"custom_id": "b", "body": {"messages": [{"role": "user", "content": "x"}]}}),
            OK[0],
        ),
        rows=1,
        errors=((1, "body missing"), (2, "method and url missing")),
    ),
    Case(name="empty_file", why="no rows at all", data=b"", rows=0, refused=True),
)
