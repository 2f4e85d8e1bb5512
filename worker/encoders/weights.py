"""An encoder's weights, by one set of names whatever the file calls them; unknown ones are an error."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import mlx.core as mx

from fleet.errors import ModelError
from worker.encoders.config import EncoderConfig

#: What training wraps a model in.
_PREFIX = re.compile(r"^(model\.)?(bert\.|roberta\.)?")
#: Heads for other purposes, and tables that follow from the configuration.
_UNUSED = re.compile(r"^(pooler|cls|lm_head|classifier|qa_outputs)\.|^embeddings\.(position_ids|token_type_ids)$")
#: Names of old files.
_OLD = ((".gamma", ".weight"), (".beta", ".bias"))

EMBEDDINGS = "embeddings."
WORDS = "embeddings.word_embeddings.weight"
POSITIONS = "embeddings.position_embeddings.weight"
TYPES = "embeddings.token_type_embeddings.weight"


def load_weights(files: Sequence[Path], config: EncoderConfig, dtype: mx.Dtype | None) -> dict[str, mx.array]:
    """The weights of an encoder, in `dtype` unless that is None; ModelError when one is missing, unknown, misshapen."""
    found: dict[str, mx.array] = {}
    for path in files:
        found |= {_name(name): weight for name, weight in read_weights(path).items()}
    found = {name: weight for name, weight in found.items() if not _UNUSED.match(name)}
    expected = shapes(config)
    if missing := sorted(expected.keys() - found.keys()):
        raise ModelError(f"the weights lack {missing[0]} and {len(missing) - 1} others: not an encoder of this family")
    if unknown := sorted(found.keys() - expected.keys()):
        raise ModelError(f"the weights have {unknown[0]}, which is not done here: a model of another build")
    for name, weight in found.items():
        if name != TYPES and weight.shape != expected[name]:
            raise ModelError(f"{name} has the shape {weight.shape} where config.json makes it {expected[name]}")
    return {name: weight if dtype is None else weight.astype(dtype) for name, weight in found.items()}


def read_weights(path: Path) -> dict[str, mx.array]:
    """All of a safetensors file; ModelError when it is none."""
    try:
        loaded = mx.load(str(path))
    except (RuntimeError, ValueError) as error:
        raise ModelError(f"{path} cannot be read: {error}") from error
    if not isinstance(loaded, dict):
        raise ModelError(f"{path} holds no weights by name")
    return loaded


def shapes(config: EncoderConfig) -> dict[str, tuple[int, ...]]:
    """Name and shape of every weight; the number of token types is not looked at."""
    hidden, inner = config.hidden, config.inner
    wanted: dict[str, tuple[int, ...]] = {
        WORDS: (config.vocabulary, hidden),
        POSITIONS: (config.positions, hidden),
        TYPES: (1, hidden),
        EMBEDDINGS + "LayerNorm.weight": (hidden,),
        EMBEDDINGS + "LayerNorm.bias": (hidden,),
    }
    for at in range(config.layers):
        layer = f"encoder.layer.{at}."
        for part in ("attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense"):
            wanted |= _linear(layer + part, hidden, hidden)
        wanted |= _linear(layer + "intermediate.dense", hidden, inner)
        wanted |= _linear(layer + "output.dense", inner, hidden)
        for part in ("attention.output.LayerNorm", "output.LayerNorm"):
            wanted |= {f"{layer}{part}.weight": (hidden,), f"{layer}{part}.bias": (hidden,)}
    return wanted


def _linear(name: str, inputs: int, outputs: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (outputs, inputs), f"{name}.bias": (outputs,)}


def _name(name: str) -> str:
    plain = _PREFIX.sub("", name)
    for old, new in _OLD:
        plain = plain.replace(old, new)
    return plain
