"""How next tokens are chosen: one shared sampler a group, own draws for seeded rows, labels by their trie."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm.sample_utils import apply_top_p, greedy_sampler, make_sampler

from fleet.job import Sampling

#: (rows, vocabulary) log-probabilities -> (rows,) tokens
Sampler = Callable[[mx.array], mx.array]
#: (the last prompt token and the tokens so far, (1, vocabulary) logits) -> logits
Processor = Callable[[mx.array, mx.array], mx.array]


class Samplers:
    """Gives rows of one group the same sampler object, so that a batch of them is sampled in one call."""

    def __init__(self) -> None:
        self._shared: dict[tuple[float, float], Sampler] = {}

    def sampler(self, sampling: Sampling, key: bytes) -> Sampler:
        """The sampler of a row with this row `key`."""
        if sampling.temperature <= 0 or sampling.labels:
            return greedy()
        if sampling.seed is not None:
            return SeededSampler(sampling, key)
        group = (sampling.temperature, sampling.top_p)
        if group not in self._shared:
            self._shared[group] = make_sampler(temp=sampling.temperature, top_p=sampling.top_p)
        return self._shared[group]


def greedy() -> Sampler:
    """The one sampler of all greedy rows."""
    sampler: Sampler = greedy_sampler
    return sampler


class SeededSampler:
    """Draws that follow from the seed, the row's key and the position alone, whatever else is in the batch."""

    def __init__(self, sampling: Sampling, key: bytes) -> None:
        digest = hashlib.sha256(str(sampling.seed).encode() + b"\0" + key).digest()
        self._next = int.from_bytes(digest[:8], "little")
        self._temperature = sampling.temperature
        self._top_p = sampling.top_p

    def __call__(self, logprobs: mx.array) -> mx.array:
        draw = mx.random.key(self._next)
        self._next = (self._next + 1) % 2**64
        if self._top_p < 1:
            logprobs = apply_top_p(logprobs, self._top_p)
        return mx.random.categorical(logprobs * (1 / self._temperature), key=draw)


class LabelTrie:
    """The labels of a classification as a trie of their tokens."""

    def __init__(self, labels: Sequence[str], label_tokens: Sequence[Sequence[int]]) -> None:
        self.root = Node()
        #: tokens of the longest label
        self.depth = max(map(len, label_tokens))
        for label, tokens in zip(labels, label_tokens, strict=True):
            node = self.root
            for token in tokens:
                node = node.children.setdefault(token, Node())
            node.label = node.label or label

    def follow(self, tokens: Iterable[int]) -> Node | None:
        """Where `tokens` lead, None when they leave the trie."""
        node: Node | None = self.root
        for token in tokens:
            node = node.children.get(token) if node else None
        return node


class Node:
    """A place in a trie."""

    __slots__ = ("children", "label", "mask")

    def __init__(self) -> None:
        self.children: dict[int, Node] = {}
        #: set where a label is complete
        self.label: str | None = None
        #: additive mask that leaves the next tokens allowed here, made when first needed
        self.mask: mx.array | None = None


class LabelProcessor:
    """Leaves a row only tokens that go on towards a label, and the end tokens where a label is complete."""

    def __init__(self, trie: LabelTrie, eos: Iterable[int]) -> None:
        self._trie = trie
        self._eos = list(eos)

    def __call__(self, context: mx.array, logits: mx.array) -> mx.array:
        generated: Any = context[1:].tolist()
        node = self._trie.follow(generated)
        if node is None:
            return logits  # the step after an end token; its result is dropped
        if node.mask is None:
            node.mask = self._mask(node, logits.shape[-1])
        return logits + node.mask

    def _mask(self, node: Node, vocabulary: int) -> mx.array:
        allowed = [*node.children, *(self._eos if node.label is not None else ())]
        mask = np.full((1, vocabulary), -np.inf, dtype=np.float32)
        mask[0, allowed] = 0
        return mx.array(mask)
