"""What a model writes before its answer, told apart from it by the tags around it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from worker.text import StopWatch, Text

#: Tokens at a prompt's end in which a tag is looked for that the template has opened already.
TAIL_TOKENS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Tags:
    """The text around a model's thinking."""

    opens: str
    closes: str
    #: what an answer without thinking starts with; no part of it
    lead: str = ""

    def are_of(self, text: Text, template: str) -> bool:
        """Whether a model uses them: they are tokens of its tokenizer, or stand in its chat template."""
        if text.token_id(self.opens) is not None and text.token_id(self.closes) is not None:
            return True
        return self.opens in template and self.closes in template


#: In the order in which a model is asked for them. Qwen3, DeepSeek-R1, GLM, SmolLM3 and most others; Longcat; Mistral's
#: Magistral; Seed-OSS; gpt-oss, whose channels are put together from tokens and spelt out in no template; Gemma.
TAGS = (
    Tags(opens="<think>", closes="</think>"),
    Tags(opens="<longcat_think>", closes="</longcat_think>"),
    Tags(opens="<|think:start|>", closes="<|think:end|>"),
    Tags(opens="[THINK]", closes="[/THINK]"),
    Tags(opens="<seed:think>", closes="</seed:think>"),
)
HARMONY = Tags(
    opens="<|channel|>analysis<|message|>",
    closes="<|start|>assistant<|channel|>final<|message|>",
    lead="<|channel|>final<|message|>",
)
GEMMA = Tags(opens="<|channel>thought", closes="<channel|>")
#: Tags made of several tokens, by special tokens that only their models have.
_BY_TOKENS = ((("<|channel|>", "<|message|>", "<|start|>"), HARMONY), (("<|channel>", "<channel|>"), GEMMA))
_TEMPLATE_FILES = ("chat_template.jinja", "chat_template.json", "tokenizer_config.json")


def find_tags(folder: Path, text: Text) -> Tags | None:
    """The tags of the model in `folder`, None when it knows none."""
    files = [folder / name for name in _TEMPLATE_FILES if (folder / name).is_file()]
    template = "\n".join(file.read_text(encoding="utf-8", errors="replace") for file in files)
    for tags in TAGS:
        if tags.are_of(text, template):
            return tags
    for tokens, tags in _BY_TOKENS:
        if all(text.token_id(token) is not None for token in tokens):
            return tags
    return None


class Tagged:
    """A model's text in which tags stay visible, also where they are special tokens."""

    def __init__(self, text: Text, tags: Tags) -> None:
        self.text = text
        self.tags = tags
        #: the end of thinking where it is one token
        self.closing_id = text.token_id(tags.closes)
        self._marks = {id: mark for mark, id in text.special.items() if mark in tags.opens or mark in tags.closes}
        self._hidden = frozenset(text.special.values()) - self._marks.keys()

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of `tokens`: special ones only where they belong to tags."""
        decoded, start = "", 0
        for at, token in enumerate(tokens):
            if token in self._marks:
                decoded += self.text.decode(tokens[start:at]) + self._marks[token]
                start = at + 1
        return decoded + self.text.decode(tokens[start:])

    def is_open(self, prompt: Sequence[int]) -> bool:
        """Whether nothing but blanks stands between an opening tag and the prompt's end."""
        hidden = [at for at, token in enumerate(prompt) if token in self._hidden]
        end = prompt[hidden[-1] + 1 :] if hidden else prompt
        return self.decode(end).rstrip().endswith(self.tags.opens)


class State(Enum):
    """Where a row is: BEFORE -> INSIDE -> OVER, or BEFORE -> OVER."""

    #: nothing yet, or what may become the opening tag
    BEFORE = "before"
    INSIDE = "inside"
    #: thinking has ended, or there was none
    OVER = "over"


class Thought:
    """One row's thinking, followed token by token."""

    def __init__(self, tagged: Tagged, prompt_tail: Sequence[int]) -> None:
        """`prompt_tail` is the prompt's last TAIL_TOKENS tokens: a template may have opened the tag there."""
        self._tagged = tagged
        self._tags = tagged.tags
        self._state = State.INSIDE if tagged.is_open(prompt_tail) else State.BEFORE
        self._closing = StopWatch(tagged, (self._tags.closes,))
        self._tokens: list[int] = []
        #: tokens from here on are the answer
        self._answer_from = 0

    @property
    def inside(self) -> bool:
        """Whether thinking has begun and not ended."""
        return self._state is State.INSIDE

    def push(self, token: int) -> Sequence[int]:
        """Takes the next token; the tokens that now belong to the answer."""
        self._tokens.append(token)
        if self._state is State.OVER:
            return (token,)
        if self._state is State.INSIDE:
            if self._closes(token):
                self._state, self._answer_from = State.OVER, len(self._tokens)
            return ()
        begun = self._tagged.decode(self._tokens).lstrip()
        if begun.startswith(self._tags.opens):
            self._state = State.INSIDE
        elif not self._tags.opens.startswith(begun):
            self._state = State.OVER
            return tuple(self._tokens)
        return ()

    def _closes(self, token: int) -> bool:
        if self._tagged.closing_id is not None:
            return token == self._tagged.closing_id
        return self._closing.push(token)

    def split(self, tokens: Sequence[int]) -> tuple[str, Sequence[int], str]:
        """A row's tokens at its end: its thinking, the tokens of its answer, and the answer."""
        if self._state is State.INSIDE:
            return self._thinking(tokens), (), ""
        answer = tokens[self._answer_from :]
        if not self._answer_from:
            return "", answer, self._without_lead(answer)
        return self._thinking(tokens[: self._answer_from]), answer, self._tagged.text.decode(answer).lstrip()

    def _thinking(self, tokens: Sequence[int]) -> str:
        shown = self._tagged.decode(tokens).lstrip().removeprefix(self._tags.opens)
        return shown.partition(self._tags.closes)[0].strip()

    def _without_lead(self, answer: Sequence[int]) -> str:
        lead = self._tags.lead
        if lead and (shown := self._tagged.decode(answer)).startswith(lead):
            return shown[len(lead) :]
        return self._tagged.text.decode(answer)
