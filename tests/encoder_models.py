"""Small encoder and embedding folders with random weights: `tiny_encoder(folder)`, `tiny_qwen3(folder)`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten
from safetensors.numpy import save_file
from tokenizers import Tokenizer, models

from tests.tiny import CONFIGS, tiny

VOCABULARY = 120
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 40,
    "max_position_embeddings": 50,
    "layer_norm_eps": 1e-5,
    "pad_token_id": 0,
    "hidden_act": "gelu",
}


def tiny_encoder(
    folder: Path,
    *,
    model_type: str = "bert",
    pooling: str = "mean_tokens",
    dense: Sequence[tuple[int, str]] = (),
    prefix: str = "",
    config: dict[str, Any] | None = None,
) -> Path:
    """A whole folder. `dense` are (width, activation) of Dense modules, `prefix` stands before each weight's name."""
    said = {**SIZES, "model_type": model_type, **(config or {})}
    random = np.random.default_rng(3)
    weights = {prefix + name: array(random) for name, array in _weights(said).items()}
    _folder(folder, said, pooling, ["Pooling", *["Dense"] * len(dense), "Normalize"])
    save_file(weights, folder / "model.safetensors")
    width = said["hidden_size"]
    for at, (out, activation) in enumerate(dense):
        path = folder / f"{at + 2}_Dense"
        path.mkdir()
        (path / "config.json").write_text(
            json.dumps(
                {
                    "in_features": width,
                    "out_features": out,
                    "bias": True,
                    "activation_function": f"torch.nn.modules.activation.{activation}",
                }
            )
        )
        save_file(
            {
                "linear.weight": random.normal(size=(out, width)).astype(np.float32),
                "linear.bias": random.normal(size=out).astype(np.float32),
            },
            path / "model.safetensors",
        )
        width = out
    return folder


def tiny_qwen3(folder: Path, *, modules: bool = True) -> Path:
    """A causal language model that embeds by its last token; its texts end in <|endoftext|>, token 0."""
    said = {"model_type": "qwen3", **CONFIGS["qwen3"]}
    _folder(folder, said, "lasttoken", ["Pooling", "Normalize"])
    if not modules:
        (folder / "modules.json").unlink()
    mx.save_safetensors(str(folder / "model.safetensors"), dict(tree_flatten(tiny("qwen3").parameters())))
    return folder


def _folder(folder: Path, config: dict[str, Any], pooling: str, behind: Sequence[str]) -> None:
    (folder / "1_Pooling").mkdir(parents=True)
    kinds = ["Transformer", *behind]
    paths = ["", *(f"{at + 1}_{kind}" for at, kind in enumerate(behind))]
    modules = [
        {"path": path, "type": f"sentence_transformers.models.{kind}"} for kind, path in zip(kinds, paths, strict=True)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    flags = {"pooling_mode_mean_tokens": False, f"pooling_mode_{pooling}": True}
    (folder / "1_Pooling" / "config.json").write_text(
        json.dumps({"word_embedding_dimension": config["hidden_size"], **flags})
    )
    (folder / "config.json").write_text(json.dumps(config))
    tokenizer = Tokenizer(models.WordLevel({"<|endoftext|>": 0, "a": 1}, unk_token="<|endoftext|>"))
    tokenizer.add_special_tokens(["<|endoftext|>"])
    tokenizer.save(str(folder / "tokenizer.json"))


def _weights(config: dict[str, Any]) -> dict[str, Any]:
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    shapes = {
        "embeddings.word_embeddings.weight": (config["vocab_size"], hidden),
        "embeddings.position_embeddings.weight": (config["max_position_embeddings"], hidden),
        "embeddings.token_type_embeddings.weight": (1 if "roberta" in config["model_type"] else 2, hidden),
        "pooler.dense.weight": (hidden, hidden),
    }
    norms = ["embeddings.LayerNorm"]
    for at in range(config["num_hidden_layers"]):
        layer = f"encoder.layer.{at}"
        linear = {f"attention.self.{part}": (hidden, hidden) for part in ("query", "key", "value")}
        linear |= {"attention.output.dense": (hidden, hidden)}
        linear |= {"intermediate.dense": (inner, hidden), "output.dense": (hidden, inner)}
        for name, shape in linear.items():
            shapes[f"{layer}.{name}.weight"] = shape
            shapes[f"{layer}.{name}.bias"] = shape[:1]
        norms += [f"{layer}.attention.output.LayerNorm", f"{layer}.output.LayerNorm"]
    for name in norms:
        shapes[f"{name}.weight"] = shapes[f"{name}.bias"] = (hidden,)
    return {name: _drawing(shape) for name, shape in shapes.items()}


def _drawing(shape: tuple[int, ...]) -> Any:
    """Wide enough weights that order and padding matter."""
    return lambda random: (random.normal(size=shape) * (1.5 / shape[-1] ** 0.5 if len(shape) > 1 else 1)).astype("f4")
