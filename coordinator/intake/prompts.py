"""A request's prompts as text: the task's template, then the model's chat template."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from coordinator.intake.chat import ChatTemplate
from coordinator.intake.conversation import Message
from coordinator.intake.options import IntakeOptions
from coordinator.intake.requests import RawRequest
from coordinator.intake.tokens import pack
from fleet.errors import RequestError, UsageError
from fleet.job import Task

PLACEHOLDER = "{text}"
_SUMMARIZE = "Summarize the following text in two or three sentences.\n\n" + PLACEHOLDER
_REDUCE = (
    "The following are summaries of consecutive parts of one text. "
    "Summarize the whole text in two or three sentences.\n\n" + PLACEHOLDER
)
#: Between the summaries that a reduce step sums up.
JOINT = "\n\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One prompt, ready for the tokenizer."""

    text: str = ""
    #: the tokenizer adds its special tokens (raw text); a rendered template has its own
    special: bool = False
    #: token ids given as such, packed; empty when `text` is the prompt
    tokens: bytes = b""
    #: the text inside a task's template, which may be cut into parts; None for anything else
    document: str | None = None
    #: embed: one text may become several vectors unless the command says otherwise
    may_split: bool = True


@dataclass(frozen=True, slots=True)
class TextTemplate:
    """Text around a text, put together without looking into either."""

    before: str
    after: str

    @classmethod
    def parse(cls, template: str) -> TextTemplate:
        """Splits at the first `{text}`; UsageError without one."""
        before, found, after = template.partition(PLACEHOLDER)
        if not found:
            raise UsageError(f"the prompt template has no {PLACEHOLDER}: say where the text goes")
        return cls(before, after)

    def fill(self, text: str) -> str:
        """The template with `text` in its place."""
        return self.before + text + self.after


def read_template(value: str) -> str:
    """The template in `value`: itself when it has `{text}` in it, else the content of the file it names."""
    if PLACEHOLDER in value:
        return value
    try:
        return Path(value).expanduser().read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        raise UsageError(f"--prompt-template has no {PLACEHOLDER} in it and is no readable text file") from error


def task_template(options: IntakeOptions) -> TextTemplate | None:
    """What surrounds a text; None for generate without a template of its own, where the text is the prompt."""
    if options.prompt_template is not None:
        return TextTemplate.parse(read_template(options.prompt_template))
    if options.task is Task.SUMMARIZE:
        return TextTemplate.parse(_SUMMARIZE)
    if options.task is Task.CLASSIFY:
        before = f"Which of these labels fits the text best: {', '.join(options.labels)}?\n\nText: "
        return TextTemplate(before, "\n\nAnswer with the label alone.")
    return None


class Prompts:
    """Makes the prompts of one job's requests."""

    def __init__(
        self, options: IntakeOptions, chat: ChatTemplate | None, vocabulary: int, embed_after: str | None = None
    ) -> None:
        """`embed_after` is what the model wants before each text that is embedded; None where none is."""
        self._chat = chat
        self._embed_after = embed_after
        self._think = bool(options.think)
        self._system: list[Message] = [] if options.system is None else [{"role": "system", "content": options.system}]
        self._template = task_template(options)
        self._reduce = self._template if options.prompt_template is not None else TextTemplate.parse(_REDUCE)
        self._vocabulary = vocabulary

    def of(self, raw: RawRequest) -> list[Prompt]:
        """The prompts of `raw`, one a row; RequestError when one cannot be made."""
        if self._embed_after is not None:
            return [self._to_embed(text, raw) for text in raw.content.texts or raw.content.prompts]
        if raw.content.messages:
            return [Prompt(text=self._render(self._with_template(raw.content.messages)))]
        if raw.content.texts:
            return [Prompt(text=self.document(text), document=text) for text in raw.content.texts]
        return [self._raw(prompt) for prompt in raw.content.prompts]

    def document(self, text: str) -> str:
        """The prompt that asks for the task's answer to `text`."""
        filled = text if self._template is None else self._template.fill(text)
        return self._render([{"role": "user", "content": filled}])

    def reduction(self, summaries: Sequence[str]) -> str:
        """The prompt that asks for one summary of `summaries`."""
        assert self._reduce is not None
        return self._render([{"role": "user", "content": self._reduce.fill(JOINT.join(summaries))}])

    def _with_template(self, messages: Sequence[Message]) -> list[Message]:
        """`messages` with the job's template around the last user message."""
        wrapped = list(messages)
        if self._template is not None:
            for index in reversed(range(len(wrapped))):
                if wrapped[index]["role"] == "user":
                    wrapped[index] = {"role": "user", "content": self._template.fill(wrapped[index]["content"])}
                    break
        return wrapped

    def _render(self, messages: Sequence[Message]) -> str:
        if self._chat is None:
            raise RequestError("the model has no chat template, expected a /v1/completions line")
        if self._system and not any(message["role"] == "system" for message in messages):
            messages = [*self._system, *messages]
        return self._chat.render(messages, think=self._think)

    def _to_embed(self, text: str | tuple[int, ...], raw: RawRequest) -> Prompt:
        if not isinstance(text, str):
            return self._raw(text, "input")
        return Prompt(text=f"{self._embed_after}{text}", special=True, document=text, may_split=not raw.url)

    def _raw(self, prompt: str | tuple[int, ...], name: str = "prompt") -> Prompt:
        if isinstance(prompt, str):
            text = prompt if self._template is None else self._template.fill(prompt)
            return Prompt(text=text, special=True)
        if self._template is not None:
            raise RequestError(f"{name}: found token ids, expected text for the prompt template")
        outside = next((token for token in prompt if not 0 <= token < self._vocabulary), None)
        if outside is not None:
            raise RequestError(f"{name}: found token id {outside}, expected 0 to {self._vocabulary - 1}")
        return Prompt(tokens=pack(prompt))
