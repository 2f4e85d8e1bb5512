"""Thinking told apart from the answer, whatever its tags are made of."""

from pathlib import Path

import pytest
from tokenizers import AddedToken

from tests.models import tiny_llama, train_tokenizer
from worker.text import Text
from worker.thinking import GEMMA, HARMONY, TAGS, Tagged, Tags, Thought, find_tags

HARMONY_TOKENS = ("<|channel|>", "<|message|>", "<|start|>", "<|end|>")


class Model:
    """A tokenizer that has these tokens, and tags."""

    def __init__(self, tags: Tags, *tokens: str, special: bool = False) -> None:
        self.tokenizer = train_tokenizer()
        self.tokenizer.add_tokens([AddedToken(token, special=special) for token in tokens])
        self.text = Text(self.tokenizer)
        self.tags = tags

    def ids(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def follow(self, answer: str, prompt: str = "") -> tuple[Thought, list[int]]:
        thought = Thought(Tagged(self.text, self.tags), self.ids(prompt)[-16:])
        released = [token for token in self.ids(answer) for token in thought.push(token)]
        return thought, released

    def split(self, answer: str, prompt: str = "") -> tuple[str, str]:
        thought, released = self.follow(answer, prompt)
        reasoning, tokens, text = thought.split(self.ids(answer))
        assert list(tokens[: len(released)]) == released
        return reasoning, text


THINK = TAGS[0]
MODELS = {
    "added tokens": Model(THINK, "<think>", "</think>"),
    "special tokens": Model(THINK, "<think>", "</think>", special=True),
    "spelt out": Model(THINK),
}


@pytest.fixture(params=MODELS)
def model(request: pytest.FixtureRequest) -> Model:
    return MODELS[request.param]


@pytest.mark.parametrize(
    ("answer", "reasoning", "text"),
    [
        ("<think>\nno, café\n</think>\n\nyes", "no, café", "yes"),
        ("\n<think>no</think>yes", "no", "yes"),
        ("<think></think>yes", "", "yes"),
        ("<think>\nnever done", "never done", ""),
        ("yes", "", "yes"),
        ("<table> yes", "", "<table> yes"),
        ("<thi", "", "<thi"),
        ("", "", ""),
    ],
)
def test_an_answer_is_split_at_its_tags(model: Model, answer: str, reasoning: str, text: str) -> None:
    assert model.split(answer) == (reasoning, text)


@pytest.mark.parametrize(("answer", "reasoning"), [(" yes </think> no", ""), ("<think>a</think>yes <think> no", "a")])
def test_a_tag_in_the_middle_of_an_answer_does_not_split_it(model: Model, answer: str, reasoning: str) -> None:
    found, text = model.split(answer)
    assert found == reasoning
    assert text.strip().startswith("yes ")
    assert text.endswith(" no")


@pytest.mark.parametrize("prompt", ["who?<|im_start|>assistant\n<think>", "who?<|im_start|>assistant\n<think>\n"])
def test_a_tag_that_the_template_has_opened_is_open(model: Model, prompt: str) -> None:
    assert model.split("no\n</think>\nyes", prompt) == ("no", "yes")
    assert model.follow("no", prompt)[0].inside


@pytest.mark.parametrize("prompt", ["say <think><|im_end|>", "<think>\n\n</think>\n\n", ""])
def test_a_tag_elsewhere_in_the_prompt_is_not(model: Model, prompt: str) -> None:
    assert model.split("yes", prompt) == ("", "yes")
    assert not model.follow("yes", prompt)[0].inside


def test_tokens_are_released_once_they_cannot_become_a_tag() -> None:
    model = MODELS["spelt out"]
    thought = Thought(Tagged(model.text, THINK), [])
    ids = model.ids("<thx")
    assert [list(thought.push(token)) for token in ids[:-1]] == [[]] * (len(ids) - 1)
    assert list(thought.push(ids[-1])) == ids
    assert list(thought.push(7)) == [7]


def test_channels_are_told_apart() -> None:
    model = Model(HARMONY, *HARMONY_TOKENS, special=True)
    analysis = "<|channel|>analysis<|message|>no, wait<|end|>"
    answer = "<|start|>assistant<|channel|>final<|message|>yes"
    assert model.split(analysis + answer) == ("no, wait", "yes")
    assert model.split(analysis) == ("no, wait", "")
    assert model.split("<|channel|>final<|message|>yes") == ("", "yes")


def test_tags_are_found_by_the_tokenizer_or_the_template(tmp_path: Path) -> None:
    folder = tiny_llama(tmp_path)
    plain = Text(train_tokenizer())
    assert find_tags(folder, plain) is None
    assert find_tags(folder, Model(THINK, "<think>", "</think>").text) == THINK
    assert find_tags(folder, Model(TAGS[3], "[THINK]", "[/THINK]").text) == TAGS[3]
    assert find_tags(folder, Model(HARMONY, *HARMONY_TOKENS, special=True).text) == HARMONY
    assert find_tags(folder, Model(GEMMA, "<|channel>", "<channel|>", special=True).text) == GEMMA
    (folder / "chat_template.jinja").write_text("{{ '<think>\\n\\n</think>' if not enable_thinking }}")
    assert find_tags(folder, plain) == THINK
