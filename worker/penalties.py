"""Penalties on tokens that were there before, for the rows that ask for them."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from fleet.job import Sampling


def penalizes(sampling: Sampling) -> bool:
    """Whether rows of this sampling need a PenaltyProcessor."""
    return bool(sampling.presence_penalty or sampling.frequency_penalty) or sampling.repetition_penalty != 1


class PenaltyProcessor:
    """Changes a row's logits by its own tokens alone, whatever else is in the batch.

    Presence and frequency count the answer, as OpenAI does; repetition looks at prompt and answer, as transformers
    does. Repetition comes first, as in vLLM.
    """

    def __init__(self, sampling: Sampling, prompt: Sequence[int]) -> None:
        self._sampling = sampling
        self._prompt = mx.array(sorted(set(prompt)))

    def __call__(self, context: mx.array, logits: mx.array) -> mx.array:
        """`logits` is (1, vocabulary), `context` the last prompt token and the tokens so far."""
        counts = mx.zeros(logits.shape[-1])
        if context.size > 1:
            counts = counts.at[context[1:]].add(1.0)
        changed = logits.astype(mx.float32)
        if (repetition := self._sampling.repetition_penalty) != 1:
            seen = counts.at[self._prompt].add(1.0) > 0
            changed = mx.where(seen, mx.where(changed > 0, changed / repetition, changed * repetition), changed)
        changed = changed - self._sampling.frequency_penalty * counts - self._sampling.presence_penalty * (counts > 0)
        return changed.astype(logits.dtype)
