"""Loading for embedding: language models, Dense modules, and models that cannot be embedded with."""

from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from safetensors.numpy import load_file

from fleet.encoder_folder import read_encoder
from fleet.errors import ModelError
from tests.encoder_models import VOCABULARY, tiny_encoder, tiny_qwen3
from tests.encoder_reference import hidden_states
from tests.tiny import tiny
from worker import embedding_model
from worker.embedder import Embedder, unit
from worker.embedding_model import load_embedder

pytestmark = pytest.mark.mlx


def vectors(embedder: Embedder, *texts: list[int]) -> np.ndarray:
    return unit(embedder.finish(embedder.start(texts)))


@pytest.mark.parametrize("modules", [True, False])
def test_a_language_model_gives_the_state_of_the_end_token_whatever_stands_beside_it(
    tmp_path: Path, modules: bool
) -> None:
    embedder = load_embedder(str(tiny_qwen3(tmp_path / "m", modules=modules)), "", tmp_path / "hashes").embedder
    short, long = [5, 9, 100], [at % 200 + 1 for at in range(40)]
    made = vectors(embedder, short, long, [*short, 0])
    model = tiny("qwen3").model
    for vector, tokens in zip(made, (short, long, short), strict=True):
        state = np.array(model(mx.array([[*tokens, 0]]))[0, -1], dtype=np.float64)
        assert vector @ state / np.linalg.norm(state) >= 0.999999
        assert np.abs(np.linalg.norm(vector) - 1) < 1e-12


def test_dense_modules_follow_the_pooling(tmp_path: Path) -> None:
    folder = tiny_encoder(tmp_path / "m", dense=[(16, "Tanh"), (7, "Tanh")])
    loaded = load_embedder(str(folder), "", tmp_path / "hashes")
    tokens = [3, 50, 7]
    expected = hidden_states(load_file(folder / "model.safetensors"), read_encoder(folder).config, tokens).mean(axis=0)
    for name in ("2_Dense", "3_Dense"):
        layer = load_file(folder / name / "model.safetensors")
        expected = np.tanh(layer["linear.weight"].astype(np.float64) @ expected + layer["linear.bias"])
    assert loaded.embedder.dimension == 7
    assert np.abs(vectors(loaded.embedder, tokens)[0] - expected / np.linalg.norm(expected)).max() < 1e-6


def test_a_dense_module_of_another_shape_is_refused(tmp_path: Path) -> None:
    folder = tiny_encoder(tmp_path / "m", dense=[(16, "Tanh")])
    config = (folder / "2_Dense" / "config.json").read_text()
    (folder / "2_Dense" / "config.json").write_text(config.replace('"bias": true', '"bias": false'))
    with pytest.raises(ModelError, match="2_Dense"):
        load_embedder(str(folder), "", tmp_path / "hashes")


def test_what_an_engine_must_know_is_told(tmp_path: Path) -> None:
    loaded = load_embedder(str(tiny_encoder(tmp_path / "m")), "", tmp_path / "hashes")
    assert (loaded.vocabulary, loaded.max_seq_tokens) == (VOCABULARY, 50)
    assert loaded.weight_bytes > VOCABULARY * 24 * 4
    assert loaded.token_bytes >= 24 * 4
    with pytest.raises(ModelError, match="planned for 123"):
        load_embedder(str(tmp_path / "m"), "123", tmp_path / "hashes")


def test_a_model_that_nobody_knows_is_refused(tmp_path: Path) -> None:
    folder = tiny_encoder(tmp_path / "m", model_type="mpnet")
    with pytest.raises(ModelError, match="neither we nor mlx-lm"):
        load_embedder(str(folder), "", tmp_path / "hashes")


def test_a_model_whose_texts_change_each_other_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Leaking:
        def hidden(self, tokens: np.ndarray, _lengths: np.ndarray) -> mx.array:
            return mx.random.normal((*tokens.shape, 24), key=mx.random.key(tokens.size))

    monkeypatch.setattr(embedding_model, "_encoder", lambda _: (Leaking(), []))
    with pytest.raises(ModelError, match="in a batch than alone"):
        load_embedder(str(tiny_encoder(tmp_path / "m")), "", tmp_path / "hashes")
