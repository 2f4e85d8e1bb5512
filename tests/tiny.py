"""Tiny models of many architectures with random weights, whose greedy tokens vary and leave no near ties."""

from __future__ import annotations

import importlib
from typing import Any

import mlx.core as mx
from mlx.utils import tree_map_with_path

VOCABULARY = 211

_ATTENTION = {
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "rms_norm_eps": 1e-5,
    "vocab_size": VOCABULARY,
    "rope_theta": 10000.0,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
}
_EXPERTS = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "moe_intermediate_size": 32,
    "norm_topk_prob": True,
}

#: mlx-lm module -> its configuration; sliding windows are short, so that prompts pass them.
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": _ATTENTION,
    "qwen3": _ATTENTION,
    "qwen3_moe": {**_ATTENTION, **_EXPERTS},
    "gemma3_text": {
        **_ATTENTION,
        "num_hidden_layers": 4,
        "query_pre_attn_scalar": 16,
        "sliding_window": 24,
        "sliding_window_pattern": 2,
    },
    "gpt_oss": {
        **_ATTENTION,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "sliding_window": 24,
    },
    "mamba2": {
        "num_heads": 4,
        "head_dim": 32,
        "vocab_size": VOCABULARY,
        "hidden_size": 64,
        "intermediate_size": 128,
        "state_size": 16,
        "num_hidden_layers": 3,
        "layer_norm_epsilon": 1e-5,
        "conv_kernel": 4,
        "n_groups": 1,
        "use_bias": False,
        "use_conv_bias": True,
        "tie_word_embeddings": False,
        "time_step_limit": (0.001, 100.0),
        "time_step_rank": "auto",
    },
    "qwen3_next": {
        **_ATTENTION,
        **_EXPERTS,
        "linear_num_value_heads": 4,
        "linear_num_key_heads": 2,
        "linear_key_head_dim": 32,
        "linear_value_head_dim": 16,
        "linear_conv_kernel_dim": 4,
        "shared_expert_intermediate_size": 32,
        "partial_rotary_factor": 0.5,
    },
    "falcon_h1": {
        **_ATTENTION,
        "mamba_d_head": 16,
        "mamba_d_ssm": 64,
        "mamba_d_state": 16,
        "mamba_n_heads": 4,
        "mamba_expand": 1,
    },
}


def tiny(name: str, *, seed: int = 0, **changes: Any) -> Any:
    """A tiny model of the architecture `name`, float32, the same for the same arguments."""
    module = importlib.import_module(f"mlx_lm.models.{name}")
    config = {"model_type": name, **CONFIGS[name], **changes}
    mx.random.seed(seed)
    model = module.Model(module.ModelArgs.from_dict(config))
    model.update(tree_map_with_path(_livelier, model.parameters()))
    mx.eval(model.parameters())
    model.eval()
    return model


def _livelier(path: str, weight: mx.array) -> mx.array:
    """Weights under which context matters: wide matrices, so that what a layer adds outweighs what it was given."""
    if weight.ndim < 2 or "conv1d" in path or weight.dtype != mx.float32:
        return weight
    return mx.random.normal(weight.shape) * (2.0 / weight.shape[-1] ** 0.5)
