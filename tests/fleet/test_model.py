"""A model folder is found, checked file by file, and named by the bytes of its weights."""

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import huggingface_hub.errors
import pytest
from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

from fleet.errors import ModelError
from fleet.model import _HUB_ERRORS, context_tokens, find_model, read_config, tokenizer_hash, weights_hash


def make_folder(path: Path) -> Path:
    path.mkdir()
    (path / "config.json").write_text(json.dumps({"max_position_embeddings": 128}))
    (path / "tokenizer.json").write_text("{}")
    (path / "model.safetensors").write_bytes(b"weights")
    return path


@pytest.mark.parametrize("missing", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_folder_that_lacks_a_file_is_refused_by_name(tmp_path: Path, missing: str) -> None:
    folder = make_folder(tmp_path / "m")
    (folder / missing).unlink()
    with pytest.raises(ModelError, match=missing.replace("model.", r"\*.")):
        find_model(str(folder))


def test_a_complete_folder_is_found_by_a_relative_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_folder(tmp_path / "m")
    monkeypatch.chdir(tmp_path)
    assert find_model("m") == folder


@pytest.mark.parametrize("source", ["./nowhere", "nowhere", "a/b/c", "~/nowhere/at/all"])
def test_a_path_that_does_not_exist_is_never_looked_up_on_the_hub(source: str) -> None:
    with pytest.raises(ModelError, match="no model folder at"):
        find_model(source)


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (LocalEntryNotFoundError("x"), "the hub cannot be reached and no copy is kept from before: check the network"),
        (HFValidationError("x"), "the hub can have no model of this name"),
        (ZeroDivisionError("x"), r"fetching it from the hub failed \(ZeroDivisionError\): check the name and"),
    ],
)
def test_why_the_hub_gives_no_model_is_told_in_words(
    monkeypatch: pytest.MonkeyPatch, error: Exception, sentence: str
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("huggingface_hub.snapshot_download", refuse)
    with pytest.raises(ModelError, match=f"there is no folder no/such here, and {sentence}"):
        find_model("no/such")


def test_the_hub_errors_we_tell_are_there_to_be_raised() -> None:
    assert [name for name in _HUB_ERRORS if not hasattr(huggingface_hub.errors, name)] == []


def test_the_hash_follows_the_bytes_and_is_remembered(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "m")
    cache = tmp_path / "hashes.json"
    first = weights_hash(folder, cache)
    assert json.loads(cache.read_text()).popitem()[1] == first
    assert weights_hash(folder, cache) == first
    (folder / "model.safetensors").write_bytes(b"WEIGHTS")
    os.utime(folder / "model.safetensors", ns=(1, 1))
    assert weights_hash(folder, cache) != first


def test_a_broken_hash_cache_is_only_a_cache(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "m")
    cache = tmp_path / "hashes.json"
    good = weights_hash(folder, cache)
    cache.write_text("not json")
    assert weights_hash(folder, cache) == good


def test_the_tokenizer_hash_changes_with_the_chat_template(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "m")
    bare = tokenizer_hash(folder)
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    assert tokenizer_hash(folder) != bare


def test_the_context_is_read_from_the_config_nested_or_not() -> None:
    assert context_tokens({"max_position_embeddings": 128}) == 128
    assert context_tokens({"text_config": {"max_position_embeddings": 64}}) == 64
    assert context_tokens({}) == 1 << 20


def test_a_config_that_is_no_object_is_refused(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "m")
    (folder / "config.json").write_text("[1]")
    with pytest.raises(ModelError, match="not a JSON object"):
        read_config(folder)


def test_hashes_found_at_the_same_time_are_right_and_leave_nothing_behind(tmp_path: Path) -> None:
    cache = tmp_path / "hashes.json"
    folders = [tmp_path / f"m{n}" for n in range(8)]
    for n, folder in enumerate(folders):
        folder.mkdir()
        (folder / "model.safetensors").write_bytes(bytes([n]) * 1000)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda folder: weights_hash(folder, cache), folders))
    assert len(set(found)) == 8
    assert [weights_hash(folder, cache) for folder in folders] == found
    assert [path.name for path in tmp_path.glob("*.tmp")] == []
