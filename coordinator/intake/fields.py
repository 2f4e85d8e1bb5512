"""Typed fields of a request's body: what each may be, and which ones would change an answer we do not give."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fleet.errors import RequestError

MAX_STOPS = 16
#: Seeds are 64-bit on the wire.
_SEED_END = 1 << 63
#: A longer value is described, not quoted: a prompt has no place in an error.
_QUOTED_CHARS = 60

#: Fields that would change the answer in ways not done here, with the values that ask for nothing (null always does).
NEUTRAL: dict[str, tuple[object, ...]] = {
    "audio": (),
    "best_of": (1,),
    "echo": (False,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "logit_bias": ({},),
    "logprobs": (False,),
    "min_p": (0,),
    "modalities": (["text"],),
    "n": (1,),
    "prediction": (),
    "response_format": ({"type": "text"},),
    "stream": (False,),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "top_k": (0, -1),
    "top_logprobs": (0,),
    "web_search_options": (),
}
#: Range of a sampling field that is a number, its lowest value included or not, and what is said of others.
_NUMBERS = {
    "temperature": (0, True, 2, "a number from 0 to 2"),
    "top_p": (0, False, 1, "a number over 0, at most 1"),
    "presence_penalty": (-2, True, 2, "a number from -2 to 2"),
    "frequency_penalty": (-2, True, 2, "a number from -2 to 2"),
    "repetition_penalty": (0, False, 2, "a number over 0, at most 2"),
}
SAMPLING = frozenset({"max_tokens", "max_completion_tokens", "seed", "stop"}) | _NUMBERS.keys()
#: How the numbers of a vector may be written; the first unless asked otherwise.
ENCODING_FORMAT = "encoding_format"
ENCODING_FORMATS = ("float", "base64")
#: Fields that change no answer.
HARMLESS = frozenset(
    {
        "model",
        "user",
        "metadata",
        "store",
        "service_tier",
        "safety_identifier",
        "prompt_cache_key",
        "parallel_tool_calls",
        "stream_options",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a request itself says about its answer; None where it says nothing."""

    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    stop: tuple[str, ...] | None = None
    #: numbers in an embedding
    dimensions: int | None = None


NOTHING_SET = Settings()


def found(value: object) -> str:
    """`value` in a few words, for "found X, expected Y"."""
    if isinstance(value, str) and len(value) > _QUOTED_CHARS:
        return f"a string of {len(value):,} characters"
    if isinstance(value, list | tuple | dict) and value:
        return "an object" if isinstance(value, dict) else "a list"
    return json.dumps(value, ensure_ascii=False)


def wrong(name: str, value: object, expected: str) -> RequestError:
    """The error for a field of the wrong type or range."""
    return RequestError(f"{name}: found {found(value)}, expected {expected}")


def names(fields: Iterable[str]) -> str:
    """Field names for an error, quoted and shortened."""
    listed = [found(name if len(name) <= _QUOTED_CHARS else name[:_QUOTED_CHARS] + "...") for name in fields]
    return ", ".join(listed[:10]) + (", ..." if len(listed) > 10 else "") or "none"


def check_neutral(body: Mapping[str, Any]) -> None:
    """Raises RequestError naming the first field that asks for something not done here."""
    for name in body.keys() & NEUTRAL.keys():
        value = body[name]
        if value is None or any(value == ok and _is_bool(value) == _is_bool(ok) for ok in NEUTRAL[name]):
            continue
        instead = " or set it to ".join(["leave it out", *(json.dumps(ok) for ok in NEUTRAL[name])])
        raise RequestError(f"{name}: {found(value)} is not done here: {instead}")


def settings(body: Mapping[str, Any]) -> Settings:
    """The sampling fields of `body`, checked; null is the same as absent."""
    if body.keys().isdisjoint(SAMPLING):
        return NOTHING_SET
    longest = _count(body, "max_tokens")
    newer = _count(body, "max_completion_tokens")
    return Settings(
        max_tokens=longest if newer is None else newer,
        seed=_seed(body.get("seed")),
        stop=_stop(body.get("stop")),
        dimensions=None,
        **{name: _number(name, body[name]) for name in body.keys() & _NUMBERS.keys()},
    )


def embedding_settings(body: Mapping[str, Any]) -> Settings:
    """The fields of an embeddings body that change its vectors, checked."""
    dimensions = _count(body, "dimensions")
    return NOTHING_SET if dimensions is None else Settings(dimensions=dimensions)


def encoding_format(body: Mapping[str, Any]) -> str:
    """How an embeddings body wants its vectors written."""
    value = body.get(ENCODING_FORMAT)
    if value not in (None, *ENCODING_FORMATS):
        raise wrong(ENCODING_FORMAT, value, " or ".join(ENCODING_FORMATS))
    return value or ENCODING_FORMATS[0]


def _count(body: Mapping[str, Any], name: str) -> int | None:
    value = body.get(name)
    if value is None:
        return None
    if not isinstance(value, int) or _is_bool(value) or value < 1:
        raise wrong(name, value, "a positive integer")
    return value


def _number(name: str, value: object) -> float | None:
    low, inclusive, high, expected = _NUMBERS[name]
    if value is None:
        return None
    if not isinstance(value, int | float) or _is_bool(value) or not low <= value <= high:
        raise wrong(name, value, expected)
    if value == low and not inclusive:
        raise wrong(name, value, expected)
    return float(value)


def _seed(value: object) -> int | None:
    if value is None:
        return None
    if not isinstance(value, int) or _is_bool(value) or not -_SEED_END <= value < _SEED_END:
        raise wrong("seed", value, "an integer of 64 bits")
    return value


def _stop(value: object) -> tuple[str, ...] | None:
    if value is None:
        return None
    stops = value if isinstance(value, list) else [value]
    if len(stops) > MAX_STOPS:
        raise RequestError(f"stop: found {len(stops)} texts, expected at most {MAX_STOPS}")
    for stop in stops:
        if not isinstance(stop, str) or not stop:
            raise wrong("stop", stop, "a text that is not empty, or a list of such")
    return tuple(stops)


def _is_bool(value: object) -> bool:
    return isinstance(value, bool)
