"""What an encoder's config.json says, checked: a setting that is not done is an error that names it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fleet.encoder_folder import OFFSET_POSITIONS
from fleet.errors import ModelError

#: Names of the exact GELU, by the error function; "gelu_new" and "gelu_fast" are other functions.
ACTIVATIONS = ("gelu",)
_SIZES = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "max_position_embeddings",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderConfig:
    """A BERT's sizes."""

    vocabulary: int
    hidden: int
    layers: int
    heads: int
    #: width inside the feed-forward part
    inner: int
    positions: int
    norm_eps: float
    #: token that only fills up; RoBERTa counts positions from behind it
    pad: int
    #: RoBERTa's way: positions begin at `pad` + 1, and padding tokens have none
    offset_positions: bool

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> EncoderConfig:
        """ModelError for what config.json lacks or asks for and we do not do."""
        _check(config)
        sizes = {name: _size(config, name) for name in _SIZES}
        if sizes["hidden_size"] % sizes["num_attention_heads"]:
            raise ModelError(
                f"the model's config.json has {sizes['num_attention_heads']} heads for {sizes['hidden_size']} numbers"
            )
        return cls(
            vocabulary=sizes["vocab_size"],
            hidden=sizes["hidden_size"],
            layers=sizes["num_hidden_layers"],
            heads=sizes["num_attention_heads"],
            inner=sizes["intermediate_size"],
            positions=sizes["max_position_embeddings"],
            norm_eps=float(config.get("layer_norm_eps", 1e-12)),
            pad=int(config.get("pad_token_id") or 0),
            offset_positions=config.get("model_type") in OFFSET_POSITIONS,
        )


def _check(config: Mapping[str, Any]) -> None:
    asked = {
        "position_embedding_type": config.get("position_embedding_type", "absolute"),
        "hidden_act": config.get("hidden_act", "gelu"),
        "is_decoder": config.get("is_decoder", False),
        "add_cross_attention": config.get("add_cross_attention", False),
    }
    done: dict[str, tuple[object, ...]] = {
        "position_embedding_type": ("absolute",),
        "hidden_act": ACTIVATIONS,
        "is_decoder": (False,),
        "add_cross_attention": (False,),
    }
    for name, value in asked.items():
        if value not in done[name]:
            raise ModelError(f"the model's config.json asks for {name} {value!r}, which is not done here")


def _size(config: Mapping[str, Any], name: str) -> int:
    value = config.get(name)
    if not isinstance(value, int) or value < 1:
        raise ModelError(f"the model's config.json names no {name}")
    return value
