"""What mlx-lm alone makes of a prompt, one row at a time and greedily: the answers that ours must equal."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx_lm.generate import generate_step
from mlx_lm.utils import load_model
from tokenizers import Tokenizer

from coordinator.intake.chat import load_chat_template
from worker.text import REPLACEMENT, Text, eos_ids


class Reference:
    """A model folder, loaded into this process."""

    def __init__(self, folder: Path) -> None:
        self._model: Any = load_model(folder)[0]
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._chat = load_chat_template(folder, date.today())
        self._text = Text.load(folder)
        self._eos = eos_ids(folder, self._text)

    def prompt(self, messages: Sequence[dict[str, str]], *, think: bool = False) -> list[int]:
        """Token ids of a conversation."""
        assert self._chat is not None
        rendered = self._chat.render(messages, think=think)
        return self.encode(rendered)

    def encode(self, text: str) -> list[int]:
        """Token ids of a text."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def tokens(self, prompt: Sequence[int], max_tokens: int) -> list[int]:
        """The tokens of its answer, without an end token."""
        kept: list[int] = []
        for token, _ in generate_step(mx.array(list(prompt)), self._model, max_tokens=max_tokens):
            if int(token) in self._eos:
                break
            kept.append(int(token))
        return kept

    def answer(self, prompt: Sequence[int], max_tokens: int) -> str:
        """Its answer as text."""
        kept = self.tokens(prompt, max_tokens)
        text = self._text.decode(kept)
        return text.rstrip(REPLACEMENT) if len(kept) == max_tokens else text
