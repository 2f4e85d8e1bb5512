"""What a generation is asked for, what it tells, and what it counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import mlx.core as mx

from fleet.job import Finish
from worker.generation.choice import Choice
from worker.generation.prefill import Prefix
from worker.sampling import Processor, Sampler, greedy

#: (row id, token, why the row ended or None). With Finish.STOP the token is the end token and no part of the answer.
Step = tuple[int, int, Finish | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class GenRow:
    """One row to generate."""

    #: the caller's name for it, unique among running rows
    id: int
    #: prompt after the prefix, never empty
    tokens: Sequence[int]
    #: new tokens at most, >= 1
    max_tokens: int
    #: rows that share the object are sampled in one call
    sampler: Sampler = field(default_factory=greedy)
    #: changes the logits before sampling; None for most rows
    processor: Processor | None = None
    #: computed tokens that come before `tokens`
    prefix: Prefix | None = None

    @property
    def prompt_tokens(self) -> int:
        """Tokens before the first new one, the prefix included."""
        return len(self.tokens) + (len(self.prefix.tokens) if self.prefix else 0)


@dataclass(slots=True, kw_only=True)
class Counters:
    """What a generation has done since it began; one owner, the generation."""

    #: prompt tokens computed, a prefix once
    prompt_tokens: int = 0
    #: those of them that were a prefix
    prefix_tokens: int = 0
    #: prompt positions computed only because unequal rows ran together
    padding_tokens: int = 0
    #: decode steps
    steps: int = 0
    #: sum over steps of the rows computed and wanted
    step_rows: int = 0
    #: sum over steps of the slots computed for nobody
    idle_slots: int = 0
    #: steps whose rows were equally long, so that no attention mask was needed
    level_steps: int = 0
    #: steps that read a prefix of all rows once for all
    shared_steps: int = 0
    #: rows copied to another slot to close a gap
    moved_rows: int = 0
    #: seconds spent on prompts
    prefill_s: float = 0.0
    #: seconds spent in decode steps
    decode_s: float = 0.0


@dataclass(slots=True, kw_only=True, eq=False)
class RunningRow:
    """A row in the batch, when its prompt is cached but for the last token; owned by the generation."""

    row: GenRow
    #: the last prompt token and the tokens read so far; just the last of them where no processor wants them
    tokens: list[int]
    #: tokens cached once the steps launched so far are done
    cached: int
    #: steps launched for it
    launched: int = 0
    #: tokens read
    made: int = 0
    ended: bool = False

    @property
    def wants(self) -> bool:
        """Whether the next step is to make a token for it."""
        return not self.ended and self.launched < self.row.max_tokens

    @property
    def columns(self) -> int:
        """Tokens it may have cached when it ends."""
        return self.cached + self.row.max_tokens - self.launched

    def choice(self, under_way: mx.array | None) -> Choice:
        """How its next token is chosen; `under_way`, (1,), is its token that is not read yet."""
        context = None
        if self.row.processor is not None:
            context = mx.array(self.tokens)
            if under_way is not None:
                context = mx.concatenate([context, under_way.astype(context.dtype)])
        return Choice(sampler=self.row.sampler, processor=self.row.processor, context=context)

    def read(self, token: int, eos: frozenset[int]) -> Finish | None:
        """Takes its next token; why it ends with it, or None."""
        self.made += 1
        if self.row.processor is not None:
            self.tokens.append(token)
        else:
            self.tokens[-1] = token
        if token in eos:
            finish: Finish | None = Finish.STOP
        else:
            finish = Finish.LENGTH if self.made >= self.row.max_tokens else None
        self.ended = finish is not None
        return finish


def shared_tokens(rows: Sequence[RunningRow]) -> int:
    """Tokens that all rows begin with because they have one prefix; 0 for a row alone, which reads them once anyway."""
    prefix = rows[0].row.prefix
    if prefix is None or len(rows) == 1 or any(row.row.prefix is not prefix for row in rows):
        return 0
    return len(prefix.tokens)
