"""Text from tokens, end tokens, stop strings."""

import json
from pathlib import Path

import pytest

from fleet.errors import ModelError
from tests.models import EOS, tiny_llama, train_tokenizer
from worker.text import StopWatch, Text, cut, eos_ids


@pytest.fixture(scope="module")
def text() -> Text:
    return Text(train_tokenizer())


def tokens_of(text: str) -> list[int]:
    ids: list[int] = train_tokenizer().encode(text).ids
    return ids


def test_special_tokens_are_not_text(text: Text) -> None:
    assert text.decode([1, *tokens_of("yes"), EOS]) == "yes"


def test_all_sources_of_end_tokens_count(tmp_path: Path, text: Text) -> None:
    folder = tiny_llama(tmp_path)
    (folder / "config.json").write_text(json.dumps({"text_config": {"eos_token_id": 11}, "eos_token_id": None}))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [12, 13]}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": "<|im_end|>"}}))
    assert eos_ids(folder, text) == {11, 12, 13, EOS}


def test_a_broken_tokenizer_is_a_model_error_that_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelError, match=r"tokenizer\.json"):
        Text.load(tmp_path)


@pytest.mark.parametrize("stop", ["no", "wer is n", "é ca", "🙂"])
def test_a_stop_string_over_several_tokens_is_found_at_its_last_one(text: Text, stop: str) -> None:
    tokens = tokens_of("The answer is naïve café 🙂 or no. Then more")
    watch = StopWatch(text, [stop, "never there"])
    found = [at for at, token in enumerate(tokens) if watch.push(token)]
    whole = "The answer is naïve café 🙂 or no. Then more"
    if stop not in whole:
        assert not found
    else:
        assert stop in text.decode(tokens[: found[0] + 1])
        assert stop not in text.decode(tokens[: found[0]])


def test_a_stop_string_split_over_many_tokens_is_not_missed(text: Text) -> None:
    sentence = "The states were told xq9zk. in one sentence"
    tokens = tokens_of(sentence)
    for start in range(len(sentence) - 6):
        stop = sentence[start : start + 6]
        watch = StopWatch(text, [stop])
        assert any(watch.push(token) for token in tokens), stop


def test_text_ends_before_the_first_stop_string() -> None:
    assert cut("one two three", ["three", "two"]) == "one "
    assert cut("one", ["two"]) == "one"
