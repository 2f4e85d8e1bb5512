"""What a generation is asked for, what it tells, and what it counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fleet.job import Finish
from worker.generation.choice import GREEDY, Choice
from worker.generation.prefill import Prefix

#: (row id, token, why the row ended or None). With Finish.STOP the token is the end token and no part of the answer.
Event = tuple[int, int, Finish | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class GenRow:
    """One row to generate."""

    #: the caller's name for it, unique among running rows
    id: int
    #: prompt after the prefix, never empty
    tokens: Sequence[int]
    #: new tokens at most, >= 1
    max_tokens: int
    choice: Choice = GREEDY
    #: computed tokens that come before `tokens`
    prefix: Prefix | None = None

    @property
    def prompt_tokens(self) -> int:
        """Tokens before the first new one, the prefix included."""
        return len(self.tokens) + (len(self.prefix.tokens) if self.prefix else 0)


@dataclass(slots=True, kw_only=True)
class Counters:
    """What a generation has done since it began."""

    #: decode steps
    steps: int = 0
    #: sum over steps of the rows computed and used
    step_rows: int = 0
    #: sum over steps of the slots computed for nobody
    idle_slots: int = 0
    #: steps that needed no attention mask
    maskless_steps: int = 0
    #: prompt tokens computed, padding and reused prefixes not counted
    prompt_tokens: int = 0
    #: prompt positions computed only because unequal rows ran together
    padding_tokens: int = 0
    #: rows copied to another slot to close a gap
    moved_rows: int = 0
    #: seconds spent on prompts
    prefill_s: float = 0.0
    #: seconds spent in decode steps
    decode_s: float = 0.0


@dataclass(slots=True, kw_only=True, eq=False)
class RunningRow:
    """A row in the batch."""

    id: int
    choice: Choice
    max_tokens: int
    #: its tokens as far as they were read; kept whole only when processors want them, else just the last
    tokens: list[int]
    #: tokens cached once the steps launched so far are done
    cached: int
    #: steps launched for it
    launched: int = 0
    #: tokens read
    made: int = 0
    ended: bool = False

    @classmethod
    def of(cls, row: GenRow) -> RunningRow:
        """The row when its prompt is cached but for the last token, which is the first step's input."""
        prefix = row.prefix.tokens if row.prefix else ()
        tokens = [*prefix, *row.tokens] if row.choice.processors else [row.tokens[-1]]
        return cls(
            id=row.id, choice=row.choice, max_tokens=row.max_tokens, tokens=tokens, cached=row.prompt_tokens - 1
        )

    @property
    def wants(self) -> bool:
        """Whether the next step is to make a token for it."""
        return not self.ended and self.launched < self.max_tokens

    def read(self, token: int, eos: frozenset[int]) -> Finish | None:
        """Takes its next token; why it ends with it, or None."""
        self.made += 1
        if self.choice.processors:
            self.tokens.append(token)
        else:
            self.tokens[-1] = token
        if token in eos:
            finish: Finish | None = Finish.STOP
        else:
            finish = Finish.LENGTH if self.made >= self.max_tokens else None
        self.ended = finish is not None
        return finish
