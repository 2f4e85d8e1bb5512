"""Batches of texts to vectors of unit length, over an encoder or a language model's hidden states."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import mlx.core as mx
import numpy as np

from fleet.sentence_modules import Pooling
from worker.pooling import Step, pool


class States(Protocol):
    """What computes hidden states."""

    def hidden(self, tokens: np.ndarray, lengths: np.ndarray) -> mx.array:
        """Hidden states (rows, longest, width) of padded `tokens`, of which `lengths` are real, in front."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """A batch under way."""

    #: (rows, numbers), float32, not yet waited for
    pooled: mx.array
    #: without padding
    tokens: int
    padding_tokens: int


class Embedder:
    """`start` a batch, then `finish` it; another may be started in between."""

    def __init__(
        self, states: States, *, pooling: Pooling, steps: Sequence[Step], dimension: int, end_token: int | None
    ) -> None:
        self._states = states
        self._pooling = pooling
        self._steps = steps
        self._end_token = end_token
        #: numbers in a vector
        self.dimension = dimension

    def computed_tokens(self, tokens: Sequence[int]) -> int:
        """How many tokens a text has once it ends as it must."""
        return len(tokens) + (self._end_token is not None and tokens[-1] != self._end_token)

    def start(self, texts: Sequence[Sequence[int]]) -> Pending:
        """Begins to compute texts, none of them empty, given as token ids."""
        tokens, lengths = padded([self._ended(text) for text in texts])
        pooled = pool(self._states.hidden(tokens, lengths), lengths, self._pooling)
        for step in self._steps:
            pooled = step(pooled)
        mx.async_eval(pooled)  # type: ignore[no-untyped-call]
        real = int(lengths.sum())
        return Pending(pooled=pooled, tokens=real, padding_tokens=tokens.size - real)

    def finish(self, pending: Pending) -> np.ndarray:
        """The vectors (texts, numbers), float32, before their length is made 1; waits for them."""
        return np.array(pending.pooled)

    def _ended(self, text: Sequence[int]) -> Sequence[int]:
        return text if self.computed_tokens(text) == len(text) else [*text, self._end_token or 0]


def padded(texts: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
    """Texts as one array (texts, longest), zeros behind each, and the length of each."""
    lengths = np.array([len(text) for text in texts], dtype=np.int32)
    tokens = np.zeros((len(texts), int(lengths.max())), dtype=np.int32)
    for at, text in enumerate(texts):
        tokens[at, : len(text)] = text
    return tokens, lengths


def unit(vectors: np.ndarray, dimensions: int = 0) -> np.ndarray:
    """The first `dimensions` numbers of each vector, 0 for all, made unit length; NaN where that cannot be."""
    kept = vectors[:, : dimensions or None].astype(np.float64)
    with np.errstate(all="ignore"):
        made: np.ndarray = kept / np.sqrt((kept**2).sum(axis=1, keepdims=True))
    return made


def sound(vectors: np.ndarray) -> np.ndarray:
    """Which vectors have only finite numbers."""
    finite: np.ndarray = np.isfinite(vectors).all(axis=1)
    return finite
