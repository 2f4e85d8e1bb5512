"""From logits to next tokens: one call for all rows that choose alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx

from worker.sampling import Processor, Sampler, greedy


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """How one row's next token is chosen."""

    sampler: Sampler
    processor: Processor | None
    #: what the processor sees: the last prompt token and the tokens so far; None without a processor
    context: mx.array | None


def choose(logits: mx.array, choices: Sequence[Choice | None]) -> mx.array:
    """The next token of each slot, (slots,), from (slots, vocabulary); None is a slot nobody reads.

    Rows that share a sampler object are sampled in one call; greedy rows skip the normalization.
    """
    wanted = [(i, choice) for i, choice in enumerate(choices) if choice is not None]
    for i, choice in wanted:
        if choice.processor is not None and choice.context is not None:
            logits[i : i + 1] = choice.processor(choice.context, logits[i : i + 1])
    samplers = {id(choice.sampler): choice.sampler for _, choice in wanted}
    # A free slot may be sampled along, but not by a sampler of one row: its draws depend on the shape it is given.
    if len(samplers) == 1 and (len(wanted) > 1 or len(choices) == 1 or greedy() in samplers.values()):
        return _sampled(logits, *samplers.values())
    tokens = mx.zeros(len(choices), dtype=mx.uint32)
    for name, sampler in samplers.items():
        alike = mx.array([i for i, choice in wanted if id(choice.sampler) == name])
        tokens[alike] = _sampled(logits[alike], sampler).astype(mx.uint32)
    return tokens


def _sampled(logits: mx.array, sampler: Sampler) -> mx.array:
    if sampler is greedy():
        return mx.argmax(logits, axis=-1)
    return sampler(logits - mx.logsumexp(logits, axis=-1, keepdims=True))
