"""From tokens back to text, and stop strings found while a row decodes. The engine's only user of `tokenizers`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

from tokenizers import Tokenizer

from fleet.errors import ModelError
from fleet.model import TOKENIZER_FILE, read_config

#: What a decoder puts where bytes do not make a character yet.
REPLACEMENT = "\ufffd"


class Decodes(Protocol):
    """What turns tokens into text."""

    def decode(self, tokens: Sequence[int]) -> str: ...


class Text:
    """A model's tokenizer, as far as an engine needs it."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        #: special tokens, which `decode` leaves out, by what is written for them
        self.special = {
            token.content: id for id, token in tokenizer.get_added_tokens_decoder().items() if token.special
        }

    @classmethod
    def load(cls, folder: Path) -> Text:
        """The tokenizer of a model folder; ModelError when its file cannot be read."""
        try:
            return cls(Tokenizer.from_file(str(folder / TOKENIZER_FILE)))
        except Exception as error:  # the library raises bare Exception for every fault
            raise ModelError(f"{folder / TOKENIZER_FILE} cannot be read as a tokenizer: {error}") from error

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of `tokens` without special ones."""
        text: str = self._tokenizer.decode(list(tokens), skip_special_tokens=True)
        return text

    def token_id(self, content: str) -> int | None:
        """The id of the token written exactly so, None when there is none."""
        id: int | None = self._tokenizer.token_to_id(content)
        return id

    def special_id(self, content: str) -> int | None:
        """The id of the special token written exactly so; `decode` leaves these out."""
        return self.special.get(content)


def eos_ids(folder: Path, text: Text) -> frozenset[int]:
    """All tokens that end an answer, by config.json, generation_config.json and the tokenizer."""
    config = read_config(folder)
    sources = [config, config.get("text_config") or {}, _read_optional(folder / "generation_config.json")]
    found = {id for source in sources for id in _ids(source.get("eos_token_id"))}
    named = _read_optional(folder / "tokenizer_config.json").get("eos_token")
    content = named.get("content") if isinstance(named, dict) else named
    if isinstance(content, str) and (id := text.token_id(content)) is not None:
        found.add(id)
    return frozenset(found)


def _ids(value: object) -> Iterable[int]:
    if isinstance(value, int):
        return [value]
    return [id for id in value if isinstance(id, int)] if isinstance(value, list) else []


def _read_optional(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


class StopWatch:
    """Finds stop strings in a row's text as its tokens come, spans over tokens included.

    Only the last few tokens are decoded each time: text up to `_settled` never changes, the piece after it is
    decoded again until it ends on a whole character.
    """

    def __init__(self, text: Decodes, stops: Sequence[str]) -> None:
        self._text = text
        self._stops = stops
        self._reach = max(map(len, stops)) - 1
        self._tokens: list[int] = []
        self._settled = 0
        self._seen = 0
        self._tail = ""

    def push(self, token: int) -> bool:
        """Takes the next token; True when a stop string is complete."""
        self._tokens.append(token)
        before = self._text.decode(self._tokens[self._settled : self._seen])
        piece = self._text.decode(self._tokens[self._settled :])
        new = piece[len(before) :]
        window = self._tail + new
        if piece.endswith(REPLACEMENT):
            return self._in(window)
        self._settled, self._seen = self._seen, len(self._tokens)
        self._tail = window[-self._reach :] if self._reach else ""
        return self._in(window)

    def _in(self, window: str) -> bool:
        return any(stop in window for stop in self._stops)


def cut(text: str, stops: Sequence[str]) -> str:
    """`text` up to the first stop string in it."""
    ends = [at for stop in stops if (at := text.find(stop)) >= 0]
    return text[: min(ends)] if ends else text
