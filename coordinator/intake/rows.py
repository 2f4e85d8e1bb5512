"""From a prompt's tokens to a row: how many new tokens it may have, how it is sampled, and its key."""

from __future__ import annotations

from dataclasses import replace

from coordinator.intake.duplicates import Duplicates
from coordinator.intake.fields import Settings
from coordinator.intake.options import IntakeOptions
from coordinator.records import NewRow
from fleet.errors import RequestError
from fleet.job import KeyHeader, KeyMaker, Sampling, Task

#: New tokens when nobody says how many.
DEFAULT_MAX_TOKENS = {Task.GENERATE: 512, Task.SUMMARIZE: 160}
#: Settings and key headers remembered; a backlog rarely has more than a few.
_REMEMBERED = 4096


class RowMaker:
    """Makes the rows of one job."""

    def __init__(
        self,
        options: IntakeOptions,
        header: KeyHeader,
        *,
        context: int,
        label_tokens: tuple[tuple[int, ...], ...] = (),
    ) -> None:
        self._options = options
        self._header = header
        self.context = context
        self._labels = options.labels if label_tokens else ()
        self._label_tokens = label_tokens
        self._samplings: dict[Settings, Sampling] = {}
        self._keys: dict[tuple[Sampling, int, int], KeyMaker] = {}
        self._duplicates = Duplicates()

    def row(self, tokens: bytes, settings: Settings) -> NewRow:
        """The row of a whole prompt; RequestError when prompt and answer do not fit the context."""
        sampling = self.sampling(settings)
        max_tokens = self.allowed(len(tokens) // 4, settings)
        key = self._maker(sampling, max_tokens, 0).key(tokens)
        if sampling.temperature > 0 and settings.seed is None:
            times = self._duplicates.ordinal(key)
            key = self._maker(sampling, max_tokens, times).key(tokens) if times else key
        return NewRow(key=key, tokens=tokens, max_tokens=max_tokens, sampling=sampling)

    def reduction(self, tokens: bytes, sampling: Sampling, max_tokens: int) -> NewRow:
        """The row of a reduce step, whose prompt is known to fit."""
        key = self._maker(sampling, max_tokens, 0).key(tokens)
        return NewRow(key=key, tokens=tokens, max_tokens=max_tokens, sampling=sampling)

    def allowed(self, prompt: int, settings: Settings) -> int:
        """New tokens that a row of `prompt` tokens may have; RequestError when that is none, or fewer than given."""
        wanted, given = self.wanted(settings)
        left = self.context - prompt
        if left < 1:
            raise too_long(prompt, self.context)
        if given and wanted > left:
            raise RequestError(
                f"the prompt has {prompt:,} tokens and max_tokens is {wanted:,}, "
                f"expected at most {self.context:,} together, the model's context"
            )
        return min(wanted, left)

    def wanted(self, settings: Settings) -> tuple[int, bool]:
        """New tokens asked for, and whether a person named the figure (a default may be clamped)."""
        if self._label_tokens:
            return max(map(len, self._label_tokens)) + 1, True
        given = self._options.max_tokens if settings.max_tokens is None else settings.max_tokens
        return (DEFAULT_MAX_TOKENS[self._options.task], False) if given is None else (given, True)

    def sampling(self, settings: Settings) -> Sampling:
        """How a row is sampled; equal ones are one object."""
        found = self._samplings.get(settings)
        if found is None:
            if len(self._samplings) >= _REMEMBERED:
                self._samplings.clear()
            found = self._samplings[settings] = self._resolve(settings)
        return found

    def _resolve(self, settings: Settings) -> Sampling:
        if self._label_tokens:
            return Sampling(labels=self._labels, label_tokens=self._label_tokens)
        options = self._options
        common = Sampling(
            stop=options.stop if settings.stop is None else settings.stop,
            presence_penalty=_first(settings.presence_penalty, 0.0),
            frequency_penalty=_first(settings.frequency_penalty, 0.0),
            repetition_penalty=_first(settings.repetition_penalty, 1.0),
        )
        temperature = _first(settings.temperature, options.temperature, 0.0)
        if temperature == 0:  # greedy: neither top_p nor seed changes the answer
            return common
        seed = options.seed if settings.seed is None else settings.seed
        top_p = _first(settings.top_p, options.top_p, 1.0)
        return replace(common, temperature=temperature, top_p=top_p, seed=seed)

    def _maker(self, sampling: Sampling, max_tokens: int, duplicate: int) -> KeyMaker:
        name = (sampling, max_tokens, duplicate)
        maker = self._keys.get(name)
        if maker is None:
            if len(self._keys) >= _REMEMBERED:
                self._keys.clear()
            header = replace(self._header, sampling=sampling, max_tokens=max_tokens, duplicate=duplicate)
            maker = self._keys[name] = KeyMaker(header)
        return maker


def too_long(prompt: int, context: int, *, about: bool = False) -> RequestError:
    """The error for a prompt that no answer would fit behind."""
    return RequestError(
        f"the prompt has {'about ' if about else ''}{prompt:,} tokens, "
        f"expected fewer than {context:,}, the model's context"
    )


def _first(*values: float | None) -> float:
    return next(value for value in values if value is not None)
