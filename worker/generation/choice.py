"""From logits to next tokens: one call for all rows that choose alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import mlx.core as mx

#: (rows, vocabulary) of log-probabilities -> (rows,) of token ids
Sampler = Callable[[mx.array], mx.array]
#: (the row's tokens so far, (1, vocabulary) of logits) -> logits
Processor = Callable[[mx.array, mx.array], mx.array]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Choice:
    """How a row's next token is chosen. Rows that share a sampler object are sampled in one call."""

    #: None takes the likeliest token
    sampler: Sampler | None = None
    #: applied to the row's logits first, in this order
    processors: tuple[Processor, ...] = ()


#: What most backlogs use: the likeliest token, whose probability nobody asks for.
GREEDY = Choice()


def choose(logits: mx.array, choices: Sequence[Choice | None], contexts: Sequence[mx.array | None]) -> mx.array:
    """The next token of each slot, (slots,), from (slots, vocabulary); None is a slot nobody reads.

    `contexts[slot]` are the tokens so far of a row with processors.
    """
    if any(choice is not None and choice.processors for choice in choices):
        logits = _processed(logits, choices, contexts)
    samplers = {id(choice.sampler): choice.sampler for choice in choices if choice is not None}
    if len(samplers) == 1:
        return _sampled(logits, *samplers.values())
    tokens = mx.zeros(len(choices), dtype=mx.uint32)
    for name, sampler in samplers.items():
        alike = mx.array([i for i, choice in enumerate(choices) if choice is not None and id(choice.sampler) == name])
        tokens[alike] = _sampled(logits[alike], sampler).astype(mx.uint32)
    return tokens


def _sampled(logits: mx.array, sampler: Sampler | None) -> mx.array:
    if sampler is None:
        return mx.argmax(logits, axis=-1)
    return sampler(logits - mx.logsumexp(logits, axis=-1, keepdims=True))


def _processed(logits: mx.array, choices: Sequence[Choice | None], contexts: Sequence[mx.array | None]) -> mx.array:
    rows = []
    for i, (choice, context) in enumerate(zip(choices, contexts, strict=True)):
        row = logits[i : i + 1]
        for processor in choice.processors if choice is not None else ():
            row = processor(context, row)
        rows.append(row)
    return mx.concatenate(rows)
