"""Loading: found, checked, described, tested in a batch."""

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models.cache import ArraysCache, CacheList, ChunkedKVCache, KVCache, QuantizedKVCache

from fleet.errors import ModelError
from fleet.model import weights_hash
from tests.models import CONTEXT_TOKENS, tiny_llama
from worker.generation.slots import why_single
from worker.models import CPU_PREFILL, failed_self_test, load

pytestmark = pytest.mark.mlx


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tiny_llama(tmp_path / "tiny")


def test_a_model_is_described(folder: Path, tmp_path: Path) -> None:
    cache = tmp_path / "hashes"
    loaded = load(str(folder), weights_hash(folder, cache), cache)
    assert loaded.kv_bytes == 2 * 2 * 2 * 16 * 4  # layers, keys and values, heads, head size, float32
    assert loaded.weight_bytes == pytest.approx((folder / "model.safetensors").stat().st_size, rel=0.05)
    assert loaded.context_tokens == CONTEXT_TOKENS
    assert loaded.eos == {0, 2}
    assert loaded.single == ""


def test_weights_of_another_hash_are_refused_with_both(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="planned for 0123456789ab"):
        load(str(folder), "0123456789abcdef", tmp_path / "hashes")


def test_a_missing_file_is_named(folder: Path, tmp_path: Path) -> None:
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ModelError, match=r"tokenizer\.json"):
        load(str(folder), "", tmp_path / "hashes")


@pytest.mark.parametrize("damage", [{"model_type": "no_such_model"}, {"hidden_size": 128}, {"hidden_size": "many"}])
def test_a_model_that_mlx_lm_cannot_load_is_a_model_error(
    folder: Path, tmp_path: Path, damage: dict[str, object]
) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | damage))
    with pytest.raises(ModelError, match="mlx-lm cannot load"):
        load(str(folder), "", tmp_path / "hashes")


def test_a_truncated_weight_file_is_a_model_error(folder: Path, tmp_path: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(ModelError, match="mlx-lm cannot load"):
        load(str(folder), "", tmp_path / "hashes")


def test_caches_that_cannot_hold_several_rows_are_found_wherever_they_are() -> None:
    assert why_single([KVCache(), CacheList(KVCache(), ArraysCache(2))]) == ""
    assert "QuantizedKVCache" in why_single([KVCache(), QuantizedKVCache()])
    assert "ChunkedKVCache" in why_single([CacheList(KVCache(), ChunkedKVCache(64))])


def test_a_model_whose_batch_goes_wrong_fails_the_self_test(folder: Path, tmp_path: Path) -> None:
    model = load(str(folder), "", tmp_path / "hashes").model

    class Crosstalk:
        """Lets a batch's rows see each other, as a wrong mask would."""

        def __getattr__(self, name: str) -> Any:
            return getattr(model, name)

        def __call__(self, tokens: mx.array, cache: Any = None) -> mx.array:
            logits: mx.array = model(tokens, cache=cache)
            return logits + 0.5 * mx.roll(logits, 1, axis=0) if tokens.shape[0] > 1 else logits

    assert failed_self_test(model, 362, CPU_PREFILL) == ""
    assert "other tokens in a batch than alone" in failed_self_test(Crosstalk(), 362, CPU_PREFILL)


def test_a_model_that_gives_zeros_fails_the_self_test(folder: Path, tmp_path: Path) -> None:
    model = load(str(folder), "", tmp_path / "hashes").model
    model.update({"lm_head": {"weight": mx.zeros_like(model.lm_head.weight)}})
    assert "3 of 3" in failed_self_test(model, 362, CPU_PREFILL)
