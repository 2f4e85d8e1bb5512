"""The encoders against a reference in float64 that shares no code with them."""

from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from fleet.encoder_folder import EncoderFolder, read_encoder
from fleet.errors import ModelError
from fleet.model import weight_files
from tests.encoder_models import SIZES, VOCABULARY, tiny_encoder
from tests.encoder_reference import hidden_states, pooled
from tests.minilm import minilm, minilm_tokens
from worker.embedder import padded, unit
from worker.embedding_model import load_embedder
from worker.encoders.bert import Bert, Functions, fused_attention
from worker.encoders.config import EncoderConfig
from worker.encoders.weights import load_weights

pytestmark = pytest.mark.mlx


def texts(*lengths: int) -> list[list[int]]:
    return [[2 + (at * 37 + length) % (VOCABULARY - 2) for at in range(length)] for length in lengths]


def encoder(said: EncoderFolder, functions: Functions | None = None) -> Bert:
    config = EncoderConfig.read(said.config)
    return Bert(config, load_weights(weight_files(said.folder), config, None), functions or Functions.here())


@pytest.fixture(scope="module")
def reference() -> dict[str, np.ndarray]:
    return load_file(minilm() / "model.safetensors")


@pytest.mark.parametrize("length", [1, 255, 256, 257])
def test_minilm_gives_the_vectors_of_the_reference(
    length: int, reference: dict[str, np.ndarray], tmp_path: Path
) -> None:
    words = minilm_tokens("the state of the union \N{GRINNING FACE} is " * 60)
    tokens = words[: min(length, 256)]  # the caller cuts at the folder's own limit
    embedder = load_embedder(str(minilm()), "", tmp_path / "hashes").embedder
    vector = unit(embedder.finish(embedder.start([tokens])))[0].astype(np.float32)
    exact = pooled(hidden_states(reference, read_encoder(minilm()).config, tokens), "mean")
    assert np.abs(vector - exact).max() <= 1e-6


def test_a_batch_of_unequal_texts_gives_what_each_gives_alone(tmp_path: Path) -> None:
    embedder = load_embedder(str(minilm()), "", tmp_path / "hashes").embedder
    many = [minilm_tokens("word \N{PILE OF POO} " * count)[:256] for count in (1, 3, 17, 80, 100)]
    together = unit(embedder.finish(embedder.start(many)))
    alone = np.concatenate([unit(embedder.finish(embedder.start([text]))) for text in many])
    assert (together * alone).sum(axis=1).min() >= 0.99999


@pytest.mark.parametrize(
    ("model_type", "config", "prefix"),
    [
        ("bert", {}, ""),
        ("bert", {}, "bert."),
        ("roberta", {"pad_token_id": 1}, "roberta."),
        ("xlm-roberta", {"pad_token_id": 1}, ""),
        ("camembert", {"pad_token_id": 1}, ""),
    ],
)
@pytest.mark.parametrize("pooling", ["mean_tokens", "cls_token", "max_tokens", "lasttoken"])
def test_each_family_and_pooling_gives_the_vectors_of_the_reference(
    tmp_path: Path, model_type: str, config: dict[str, Any], prefix: str, pooling: str
) -> None:
    folder = tiny_encoder(tmp_path / "m", model_type=model_type, config=config, prefix=prefix, pooling=pooling)
    said = read_encoder(folder)
    weights = {name.removeprefix(prefix): value for name, value in load_file(folder / "model.safetensors").items()}
    embedder = load_embedder(str(folder), "", tmp_path / "hashes").embedder
    some = texts(1, 5, 30, said.max_seq_tokens)
    made = unit(embedder.finish(embedder.start(some)))
    about = {**said.config, "model_type": "roberta" if model_type == "camembert" else model_type}
    for vector, tokens in zip(made, some, strict=True):
        exact = pooled(hidden_states(weights, about, tokens), said.pooling)
        assert np.abs(vector - exact).max() <= 2e-6


def test_both_ways_of_computing_agree(tmp_path: Path) -> None:
    said = read_encoder(tiny_encoder(tmp_path / "m"))
    tokens, lengths = padded(texts(4, 9, 20))
    ours = encoder(said).hidden(tokens, lengths)
    native = encoder(said, Functions(nn.gelu, fused_attention)).hidden(tokens, lengths)
    for at, length in enumerate(lengths):
        assert mx.abs(ours - native)[at, :length].max().item() < 1e-5


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("position_embedding_type", "relative_key"),
        ("hidden_act", "gelu_new"),
        ("is_decoder", True),
        ("add_cross_attention", True),
        ("num_attention_heads", 5),
        ("hidden_size", None),
    ],
)
def test_a_configuration_that_is_not_done_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(ModelError, match="heads" if name == "num_attention_heads" else name):
        EncoderConfig.read({**SIZES, "model_type": "bert", name: value})


def test_weights_that_are_missing_unknown_or_misshapen_are_refused(tmp_path: Path) -> None:
    folder = tiny_encoder(tmp_path / "m")
    file = folder / "model.safetensors"
    config, whole = EncoderConfig.read(read_encoder(folder).config), load_file(file)
    key = "encoder.layer.1.attention.self.key.weight"
    for changed, word in (
        ({name: value for name, value in whole.items() if name != key}, "lack"),
        ({**whole, "encoder.layer.1.rel_pos.weight": whole[key]}, "rel_pos"),
        ({**whole, key: whole[key][:3]}, "shape"),
    ):
        save_file(changed, file)
        with pytest.raises(ModelError, match=word):
            load_weights([file], config, None)
    file.write_bytes(b"nonsense")
    with pytest.raises(ModelError, match="cannot be read"):
        load_weights([file], config, None)


def test_names_of_old_files_are_understood(tmp_path: Path) -> None:
    folder = tiny_encoder(tmp_path / "m")
    file = folder / "model.safetensors"
    config, whole = EncoderConfig.read(read_encoder(folder).config), load_file(file)
    save_file(
        {
            name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): value
            for name, value in whole.items()
        },
        file,
    )
    assert load_weights([file], config, None).keys() == whole.keys() - {"pooler.dense.weight"}
