"""A model loaded for embedding: an encoder, or a language model whose hidden states are taken; tested in a batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten
from mlx_lm.utils import load_model

from fleet.encoder_folder import EncoderFolder, read_encoder
from fleet.errors import ModelError
from fleet.model import weight_files
from worker.embedder import Embedder, States, sound, unit
from worker.encoders.bert import Bert, Functions
from worker.encoders.config import EncoderConfig
from worker.encoders.weights import load_weights
from worker.models import find_weights, vocabulary_of
from worker.pooling import dense_steps

#: A text in a batch must give nearly the vector it gives alone; half-precision weights differ by about 1e-5.
LEAST_COSINE = 0.999
_TEST_LENGTHS = (4, 9, 17)
#: Memory is probed on a text of this many tokens, or the longest that the model takes.
_PROBE_TOKENS = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedEmbedder:
    """A model and what an engine must know of it."""

    embedder: Embedder
    #: sha256 of the weight files, hex
    hash: str
    #: sha256 of what else decides a vector, see `fleet.encoder_folder`
    folder_hash: str
    #: tokens of a text at most
    max_seq_tokens: int
    #: token ids are below this
    vocabulary: int
    weight_bytes: int
    #: bytes that a token takes while it is computed
    token_bytes: int


def load_embedder(source: str, expected_hash: str, hash_cache: Path) -> LoadedEmbedder:
    """Loads the model at `source`; ModelError when it is not whole, not `expected_hash`, or asks for the unknown."""
    folder, found = find_weights(source, expected_hash, hash_cache)
    said = read_encoder(folder)
    states, weights = _language_model(said) if said.decoder else _encoder(said)
    embedder = Embedder(
        states,
        pooling=said.pooling,
        steps=dense_steps(said.dense),
        dimension=said.dimension,
        end_token=said.end_token,
    )
    vocabulary = vocabulary_of(dict(said.config))
    _check(embedder, vocabulary, min(said.max_seq_tokens, max(_TEST_LENGTHS)), source)
    return LoadedEmbedder(
        embedder=embedder,
        hash=found,
        folder_hash=said.hash,
        max_seq_tokens=said.max_seq_tokens,
        vocabulary=vocabulary,
        weight_bytes=sum(weight.nbytes for weight in weights),
        token_bytes=_token_bytes(embedder, vocabulary, min(said.max_seq_tokens, _PROBE_TOKENS)),
    )


def _encoder(said: EncoderFolder) -> tuple[States, list[mx.array]]:
    config = EncoderConfig.read(said.config)
    # other products than those of float32 are slow on a CPU
    weights = load_weights(weight_files(said.folder), config, mx.float32 if _on_cpu() else None)
    mx.eval(list(weights.values()))
    return Bert(config, weights, Functions.here()), list(weights.values())


class LanguageModel:
    """Hidden states of an mlx-lm model. It is causal: padding behind a text changes nothing in it."""

    def __init__(self, body: Any) -> None:
        self._body = body

    def hidden(self, tokens: np.ndarray, _lengths: np.ndarray) -> mx.array:
        """See `States`."""
        states: mx.array = self._body(mx.array(tokens))
        return states


def _language_model(said: EncoderFolder) -> tuple[States, list[mx.array]]:
    try:
        model, _ = load_model(said.folder)
    except (ValueError, TypeError, KeyError, RuntimeError, OSError) as error:
        raise ModelError(f"neither we nor mlx-lm can load {said.folder}: {error}") from error
    body = getattr(model, "model", None)
    if body is None:
        raise ModelError(f"mlx-lm's model for {said.folder} does not show its hidden states")
    if _on_cpu():
        model.set_dtype(mx.float32)
    mx.eval(model.parameters())
    return LanguageModel(body), [weight for _, weight in tree_flatten(model.parameters())]


def _on_cpu() -> bool:
    return bool(mx.default_device().type == mx.DeviceType.cpu)


def _check(embedder: Embedder, vocabulary: int, longest: int, source: str) -> None:
    """ModelError when three unequal texts give other vectors together than alone."""
    texts = [made_up(min(length, longest), vocabulary) for length in _TEST_LENGTHS]
    try:
        alone = np.concatenate([unit(embedder.finish(embedder.start([text]))) for text in texts])
        together = unit(embedder.finish(embedder.start(texts)))
    except (ValueError, TypeError, AttributeError, NotImplementedError) as error:
        raise ModelError(f"{source} cannot be embedded with ({type(error).__name__}: {error})") from error
    if alone.shape[1] != embedder.dimension:
        raise ModelError(f"{source} gives vectors of {alone.shape[1]} numbers and says {embedder.dimension}")
    if not sound(together).all() or not ((alone * together).sum(axis=1) >= LEAST_COSINE).all():
        raise ModelError(f"{source} gives other vectors in a batch than alone: it cannot be embedded with")


def _token_bytes(embedder: Embedder, vocabulary: int, tokens: int) -> int:
    held = mx.get_active_memory()
    mx.reset_peak_memory()
    embedder.finish(embedder.start([made_up(tokens, vocabulary)]))
    return max(1, (mx.get_peak_memory() - held) // tokens)


def made_up(tokens: int, vocabulary: int) -> Sequence[int]:
    """A text of so many tokens that says nothing."""
    return [(7 + 31 * at * tokens) % vocabulary for at in range(tokens)]
