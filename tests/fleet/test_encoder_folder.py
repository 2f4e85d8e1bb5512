"""What a folder says of its vectors, and what it asks for that is refused by name."""

import json
from pathlib import Path
from typing import Any

import pytest

from fleet.encoder_folder import read_encoder
from fleet.errors import ModelError
from fleet.sentence_modules import Activation, Pooling
from tests.embedders import DIMENSION, MAX_SEQ_TOKENS, bare_embedder
from tests.minilm import minilm


def put(folder: Path, name: str, **changes: Any) -> None:
    """Changes a JSON file; a value of None takes the name away."""
    path = folder / name
    present = json.loads(path.read_text()) if path.is_file() else {}
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({key: value for key, value in (present | changes).items() if value is not None}))


def modules(folder: Path, *kinds: str, package: str = "sentence_transformers.models") -> None:
    """Writes modules.json; the module number n is in n_KIND, the first in the folder itself."""
    listed = [{"type": f"{package}.{kind}", "path": f"{at}_{kind}" if at else ""} for at, kind in enumerate(kinds)]
    (folder / "modules.json").write_text(json.dumps(listed))


def test_minilm_is_read_as_it_is() -> None:
    said = read_encoder(minilm())
    assert (said.decoder, said.pooling, said.dense, said.dimension) == (False, Pooling.MEAN, (), 384)
    assert said.max_seq_tokens == 256
    assert (said.prompts, said.default_prompt, said.matryoshka, said.end_token) == ({}, "", (), None)


@pytest.mark.parametrize(
    ("flag", "mode"), [("cls_token", "cls"), ("mean_tokens", "mean"), ("max_tokens", "max"), ("lasttoken", "lasttoken")]
)
def test_pooling_is_what_its_flag_says(tmp_path: Path, flag: str, mode: str) -> None:
    folder = bare_embedder(tmp_path / "m")
    put(folder, "1_Pooling/config.json", **{"pooling_mode_mean_tokens": False, f"pooling_mode_{flag}": True})
    assert read_encoder(folder).pooling == mode


def test_pooling_may_be_named_by_a_word(tmp_path: Path) -> None:
    folder = bare_embedder(tmp_path / "m")
    put(folder, "1_Pooling/config.json", pooling_mode="cls", pooling_mode_mean_tokens=None)
    assert read_encoder(folder).pooling is Pooling.CLS


def test_the_length_is_the_smallest_that_anything_allows(tmp_path: Path) -> None:
    folder = bare_embedder(tmp_path / "m")
    assert read_encoder(folder).max_seq_tokens == MAX_SEQ_TOKENS
    put(folder, "sentence_bert_config.json", max_seq_length=100)
    assert read_encoder(folder).max_seq_tokens == 64
    put(folder, "sentence_bert_config.json", max_seq_length=None)
    put(folder, "tokenizer_config.json", model_max_length=40)
    assert read_encoder(folder).max_seq_tokens == 40
    put(folder, "tokenizer_config.json", model_max_length=1e30)
    assert read_encoder(folder).max_seq_tokens == 64


def test_robertas_positions_behind_the_padding_tokens_are_not_counted(tmp_path: Path) -> None:
    folder = bare_embedder(tmp_path / "m", config={"model_type": "xlm-roberta", "pad_token_id": 1})
    put(folder, "sentence_bert_config.json", max_seq_length=64)
    assert read_encoder(folder).max_seq_tokens == 62


def test_prompts_and_shorter_vectors_are_those_declared(tmp_path: Path) -> None:
    folder = bare_embedder(
        tmp_path / "m", prompts={"query": "query: "}, config={"matryoshka_dimensions": [4, 2, 4, 4096]}
    )
    put(folder, "config_sentence_transformers.json", default_prompt_name="query")
    said = read_encoder(folder)
    assert (said.prompts, said.default_prompt, said.matryoshka) == ({"query": "query: "}, "query", (2, 4))
    put(folder, "config.json", matryoshka_dimensions=None, is_matryoshka=True)
    assert read_encoder(folder).matryoshka == tuple(range(1, DIMENSION + 1))


def dense(folder: Path, **changes: Any) -> None:
    modules(folder, "Transformer", "Pooling", "Dense", "Normalize")
    put(folder, "1_Pooling/config.json")
    put(folder, "2_Dense/config.json", **{"in_features": DIMENSION, "out_features": 5, **changes})
    (folder / "2_Dense" / "model.safetensors").write_bytes(b"\0")


def test_a_dense_module_decides_the_dimension_and_the_hash(tmp_path: Path) -> None:
    folder = bare_embedder(tmp_path / "m")
    before = read_encoder(folder).hash
    dense(folder, activation_function="torch.nn.modules.linear.Identity", bias=False)
    said = read_encoder(folder)
    assert said.dimension == 5
    assert (said.dense[0].activation, said.dense[0].bias) == (Activation.IDENTITY, False)
    (folder / "2_Dense" / "model.safetensors").write_bytes(b"\1")
    assert len({before, said.hash, read_encoder(folder).hash}) == 3


@pytest.mark.parametrize(
    ("file", "changes", "word"),
    [
        ("1_Pooling/config.json", {"pooling_mode_cls_token": True}, "mean and cls"),
        ("1_Pooling/config.json", {"pooling_mode_mean_tokens": False}, "none"),
        ("1_Pooling/config.json", {"pooling_mode_mean_tokens": False, "pooling_mode_weightedmean_tokens": True}, "wei"),
        ("1_Pooling/config.json", {"pooling_mode": "attention"}, "attention"),
        ("1_Pooling/config.json", {"include_prompt": False}, "include_prompt"),
        ("1_Pooling/config.json", {"word_embedding_dimension": 9}, "9 numbers"),
        ("config.json", {"auto_map": {"AutoModel": "modeling.Own"}}, "auto_map"),
        ("config.json", {"model_type": "gemma3_text", "use_bidirectional_attention": True}, "use_bidirectional"),
        ("config.json", {"model_type": "qwen2", "is_causal": False}, "is_causal"),
        ("config_sentence_transformers.json", {"default_prompt_name": "query"}, "'query'"),
        ("config_sentence_transformers.json", {"prompts": {"query": 3}}, "prompts"),
        ("2_Dense/config.json", {"activation_function": "torch.nn.modules.activation.ReLU"}, "ReLU"),
        ("2_Dense/config.json", {"module_input_name": "token_embeddings"}, "token_embeddings"),
        ("2_Dense/config.json", {"in_features": 7}, "7 numbers"),
        ("2_Dense/config.json", {"in_features": None}, "in_features"),
    ],
)
def test_what_is_not_done_is_refused_by_name(tmp_path: Path, file: str, changes: dict[str, Any], word: str) -> None:
    folder = bare_embedder(tmp_path / "m")
    dense(folder)
    put(folder, file, **changes)
    with pytest.raises(ModelError, match=word):
        read_encoder(folder)


@pytest.mark.parametrize(
    "kinds",
    [
        ("Transformer", "SpladePooling"),
        ("Transformer", "Pooling", "LayerNorm"),
        ("Pooling", "Transformer"),
        ("Transformer", "Pooling", "Normalize", "Dense"),
        ("Transformer",),
    ],
)
def test_modules_in_an_order_or_of_a_kind_that_is_not_done_are_refused(tmp_path: Path, kinds: tuple[str, ...]) -> None:
    folder = bare_embedder(tmp_path / "m")
    modules(folder, *kinds)
    with pytest.raises(ModelError, match=r"not done here|not an order"):
        read_encoder(folder)


def test_a_module_of_somebody_elses_code_is_refused(tmp_path: Path) -> None:
    folder = bare_embedder(tmp_path / "m")
    modules(folder, "Transformer", "Pooling", package="custom_st")
    with pytest.raises(ModelError, match=r"custom_st\.Transformer"):
        read_encoder(folder)


def test_an_encoder_that_says_nothing_of_pooling_is_refused(tmp_path: Path) -> None:
    folder = bare_embedder(tmp_path / "m")
    (folder / "modules.json").unlink()
    with pytest.raises(ModelError, match=r"modules\.json"):
        read_encoder(folder)


def test_lower_case_that_the_tokenizer_does_not_do_is_refused(tmp_path: Path) -> None:
    folder = bare_embedder(tmp_path / "m")
    put(folder, "sentence_bert_config.json", do_lower_case=True)
    read_encoder(folder)  # its tokenizer lowers
    put(folder, "tokenizer.json", normalizer={"type": "NFC"})
    with pytest.raises(ModelError, match="do_lower_case"):
        read_encoder(folder)


def decoder(folder: Path, **tokenizer: Any) -> Path:
    bare_embedder(folder, config={"model_type": "qwen3"})
    put(folder, "1_Pooling/config.json", pooling_mode_mean_tokens=False, pooling_mode_lasttoken=True)
    added = [{"id": 77, "content": "<|endoftext|>"}, {"id": 78, "content": "</s>"}]
    put(folder, "tokenizer.json", **{"added_tokens": added, "post_processor": {"type": "ByteLevel"}, **tokenizer})
    return folder


def test_qwen3_ends_its_texts_where_the_tokenizer_does_not(tmp_path: Path) -> None:
    said = read_encoder(decoder(tmp_path / "m"))
    assert (said.decoder, said.pooling, said.end_token) == (True, Pooling.LAST, 77)
    assert said.max_seq_tokens == MAX_SEQ_TOKENS - 1
    closing = {"type": "TemplateProcessing", "single": [{"Sequence": {"id": "A"}}, {"SpecialToken": {"id": "x"}}]}
    said = read_encoder(
        decoder(tmp_path / "n", post_processor={"type": "Sequence", "processors": [{"type": "ByteLevel"}, closing]})
    )
    assert (said.end_token, said.max_seq_tokens) == (None, MAX_SEQ_TOKENS)


def test_qwen3_without_modules_pools_as_its_card_says(tmp_path: Path) -> None:
    folder = decoder(tmp_path / "m")
    (folder / "modules.json").unlink()
    assert read_encoder(folder).pooling is Pooling.LAST


def test_another_decoder_ends_its_texts_when_its_tokenizer_is_told_to(tmp_path: Path) -> None:
    folder = decoder(tmp_path / "m")
    put(folder, "config.json", model_type="mistral")
    assert read_encoder(folder).end_token is None
    put(folder, "tokenizer_config.json", add_eos_token=True, eos_token="</s>")
    assert read_encoder(folder).end_token == 78
    put(folder, "tokenizer_config.json", eos_token="<none>")
    with pytest.raises(ModelError, match="<none>"):
        read_encoder(folder)
