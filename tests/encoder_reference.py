"""BERT and sentence-transformers' pooling in float64 numpy, one text at a time: shares no code with the encoder."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

_erf = np.vectorize(math.erf, otypes=[np.float64])

Weights = Mapping[str, np.ndarray]


def hidden_states(weights: Weights, config: Mapping[str, Any], tokens: Sequence[int]) -> np.ndarray:
    """Hidden states (tokens, width) of one text by the published equations of BERT and RoBERTa."""
    w = {name: np.asarray(value, dtype=np.float64) for name, value in weights.items()}
    first = config["pad_token_id"] + 1 if "roberta" in config["model_type"] else 0
    x = np.stack(
        [
            w["embeddings.word_embeddings.weight"][token]
            + w["embeddings.token_type_embeddings.weight"][0]
            + w["embeddings.position_embeddings.weight"][first + at]
            for at, token in enumerate(tokens)
        ]
    )
    x = _norm(w, "embeddings.LayerNorm", x, config)
    for at in range(config["num_hidden_layers"]):
        x = _layer(w, f"encoder.layer.{at}", x, config)
    return x


def _layer(w: Weights, name: str, x: np.ndarray, config: Mapping[str, Any]) -> np.ndarray:
    heads = config["num_attention_heads"]
    size = x.shape[1] // heads
    query, key, value = (_linear(w, f"{name}.attention.self.{part}", x) for part in ("query", "key", "value"))
    context = np.empty_like(x)
    for head in range(heads):
        part = slice(head * size, (head + 1) * size)
        scores = query[:, part] @ key[:, part].T / math.sqrt(size)
        powers = np.exp(scores - scores.max(axis=1, keepdims=True))
        context[:, part] = powers / powers.sum(axis=1, keepdims=True) @ value[:, part]
    x = _norm(
        w, f"{name}.attention.output.LayerNorm", x + _linear(w, f"{name}.attention.output.dense", context), config
    )
    inner = _linear(w, f"{name}.intermediate.dense", x)
    inner = inner * 0.5 * (1.0 + _erf(inner / math.sqrt(2.0)))
    return _norm(w, f"{name}.output.LayerNorm", x + _linear(w, f"{name}.output.dense", inner), config)


def _linear(w: Weights, name: str, x: np.ndarray) -> np.ndarray:
    return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]


def _norm(w: Weights, name: str, x: np.ndarray, config: Mapping[str, Any]) -> np.ndarray:
    centred = x - x.mean(axis=1, keepdims=True)
    spread = np.sqrt((centred**2).mean(axis=1, keepdims=True) + config["layer_norm_eps"])
    return centred / spread * w[f"{name}.weight"] + w[f"{name}.bias"]


def pooled(hidden: np.ndarray, mode: str) -> np.ndarray:
    """One vector of unit length from the hidden states of a text."""
    vector = {
        "mean": lambda: hidden.mean(axis=0),
        "cls": lambda: hidden[0],
        "lasttoken": lambda: hidden[-1],
        "max": lambda: hidden.max(axis=0),
    }[mode]()
    return vector / np.linalg.norm(vector)
