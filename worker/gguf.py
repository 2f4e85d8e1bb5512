"""A GGUF llama model as an MLX model folder: `python -m worker.gguf GGUF FOLDER`. Made for the demo model.

Names and the rotary row order are those of llama.cpp's converter: it stores the rows of q and k interleaved, pairs
of a rotation side by side; MLX wants the two halves one after the other.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx

from fleet.errors import FleetError, ModelError

#: MLX reads every quantised GGUF tensor it supports in groups of 32.
GROUP = 32
#: GGUF's token_type of control tokens.
SPECIAL_TYPE = 3
#: Written last; says what the folder was made from, so that making it again is a no-op.
ORIGIN_FILE = "origin.json"
#: Raised by one when the folder's content changes for the same GGUF.
FORMAT = 1

_LAYER_NAMES = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}
_TOP_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


def build(gguf: Path, folder: Path, *, dequantize: bool) -> None:
    """Makes `folder` from `gguf`, whole or not at all; returns at once when it is there already.

    `dequantize` stores float32 weights (quantised products are slow on a CPU), else they stay as they are.
    Raises ModelError when the file is not a llama model that MLX reads, or when `folder` holds something else.
    """
    origin = {"format": FORMAT, "gguf": gguf.name, "dequantize": dequantize}
    if _read_origin(folder) == origin:
        return
    if folder.exists() and any(folder.iterdir()) and _read_origin(folder) is None:
        raise ModelError(f"{folder} holds something else: name a folder that is new or empty")
    tensors, metadata = _load(gguf)
    folder.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        _write(draft, tensors, metadata, dequantize=dequantize)
        (draft / ORIGIN_FILE).write_text(json.dumps(origin))
        draft.chmod(0o755)
        if folder.exists():
            shutil.rmtree(folder)
        draft.replace(folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _read_origin(folder: Path) -> dict[str, Any] | None:
    try:
        found = json.loads((folder / ORIGIN_FILE).read_text())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _load(gguf: Path) -> tuple[dict[str, mx.array], dict[str, Any]]:
    if not gguf.is_file():
        raise ModelError(f"no GGUF file at {gguf}")
    try:
        loaded: Any = mx.load(str(gguf), format="gguf", return_metadata=True)
    except (RuntimeError, ValueError) as error:
        raise ModelError(f"{gguf} cannot be read as GGUF: {error}") from error
    tensors, metadata = loaded
    if metadata.get("general.architecture") != "llama":
        raise ModelError(f"{gguf} holds a {metadata.get('general.architecture')} model, only llama is known here")
    return tensors, metadata


def _write(folder: Path, tensors: Mapping[str, mx.array], metadata: Mapping[str, Any], *, dequantize: bool) -> None:
    config = model_config(metadata, tied="output.weight" not in tensors)
    weights: dict[str, mx.array] = {}
    bits: dict[str, int] = {}
    for stem, parts in _stems(tensors):
        name = layer_name(stem)
        if name.endswith(("q_proj", "k_proj")):
            heads = config["num_attention_heads" if name.endswith("q_proj") else "num_key_value_heads"]
            parts = {kind: halves(part, heads) for kind, part in parts.items()}
        if "scales" in parts:
            bits[name] = parts["weight"].shape[1] * 32 // (parts["scales"].shape[1] * GROUP)
        weights.update(_stored(name, parts, bits.get(name), dequantize=dequantize))
    if bits and not dequantize:
        config["quantization"] = quantization(bits)
    config["torch_dtype"] = "float32" if dequantize else "float16"
    mx.save_safetensors(str(folder / "model.safetensors"), weights, {"format": "mlx"})
    _write_json(folder / "config.json", config)
    _write_json(folder / "generation_config.json", _special_ids(metadata))
    _write_tokenizer(folder, metadata)


def _stems(tensors: Mapping[str, mx.array]) -> Iterator[tuple[str, dict[str, mx.array]]]:
    stems = sorted({name.rpartition(".")[0] for name in tensors})
    for stem in stems:
        kinds = ("weight", "scales", "biases")
        yield stem, {kind: tensors[f"{stem}.{kind}"] for kind in kinds if f"{stem}.{kind}" in tensors}


def layer_name(stem: str) -> str:
    """mlx-lm's name for a GGUF tensor's name without its last part."""
    if stem in _TOP_NAMES:
        return _TOP_NAMES[stem]
    block, _, rest = stem.removeprefix("blk.").partition(".")
    if not stem.startswith("blk.") or rest not in _LAYER_NAMES:
        raise ModelError(f"this GGUF has a tensor {stem}, which the llama models known here have not")
    return f"model.layers.{block}.{_LAYER_NAMES[rest]}"


def halves(rows: mx.array, heads: int) -> mx.array:
    """Rows of q or k from interleaved rotary order to halves: (heads, dim/2, 2, n) -> (heads, 2, dim/2, n)."""
    return rows.reshape(heads, -1, 2, rows.shape[-1]).swapaxes(1, 2).reshape(rows.shape)


def _stored(name: str, parts: dict[str, mx.array], bits: int | None, *, dequantize: bool) -> dict[str, mx.array]:
    if bits is None:
        return {f"{name}.weight": parts["weight"].astype(mx.float32 if dequantize else mx.float16)}
    if not dequantize:
        return {f"{name}.{kind}": part for kind, part in parts.items()}
    scales, biases = (parts[kind].astype(mx.float32) for kind in ("scales", "biases"))
    return {f"{name}.weight": mx.dequantize(parts["weight"], scales, biases, group_size=GROUP, bits=bits)}


def quantization(bits: Mapping[str, int]) -> dict[str, Any]:
    """config.json's `quantization`: the most common width, and the layers that differ."""
    widths = list(bits.values())
    usual = max(set(widths), key=widths.count)
    others = {name: {"group_size": GROUP, "bits": width} for name, width in bits.items() if width != usual}
    return {"group_size": GROUP, "bits": usual, **others}


def model_config(metadata: Mapping[str, Any], *, tied: bool) -> dict[str, Any]:
    """config.json from the `llama.*` metadata."""

    def number(key: str) -> Any:
        if f"llama.{key}" not in metadata:
            raise ModelError(f"this GGUF lacks llama.{key}")
        return metadata[f"llama.{key}"].item()

    heads = number("attention.head_count")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": number("embedding_length"),
        "intermediate_size": number("feed_forward_length"),
        "num_hidden_layers": number("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": number("attention.head_count_kv"),
        "head_dim": number("embedding_length") // heads,
        "max_position_embeddings": number("context_length"),
        "rms_norm_eps": number("attention.layer_norm_rms_epsilon"),
        "rope_theta": number("rope.freq_base"),
        "vocab_size": len(metadata["tokenizer.ggml.tokens"]),
        "hidden_act": "silu",
        "tie_word_embeddings": tied,
        **_special_ids(metadata),
    }


def _special_ids(metadata: Mapping[str, Any]) -> dict[str, int]:
    names = {"bos_token_id": "bos", "eos_token_id": "eos", "pad_token_id": "padding"}
    found = {name: metadata.get(f"tokenizer.ggml.{key}_token_id") for name, key in names.items()}
    return {name: int(value.item()) for name, value in found.items() if value is not None}


def _write_tokenizer(folder: Path, metadata: Mapping[str, Any]) -> None:
    tokens: Sequence[str] = metadata["tokenizer.ggml.tokens"]
    types = metadata["tokenizer.ggml.token_type"].tolist()
    special = [token for token, kind in zip(tokens, types, strict=True) if kind == SPECIAL_TYPE]
    tokenizer = byte_level_bpe(tokens, metadata["tokenizer.ggml.merges"], special)
    tokenizer.save(str(folder / "tokenizer.json"))
    ids = _special_ids(metadata)
    config: dict[str, Any] = {name.removesuffix("_id"): tokens[value] for name, value in ids.items()}
    config |= {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": tokens[0],
        "additional_special_tokens": special,
        "model_max_length": metadata["llama.context_length"].item(),
        "clean_up_tokenization_spaces": False,
    }
    _write_json(folder / "tokenizer_config.json", config)
    (folder / "chat_template.jinja").write_text(metadata["tokenizer.chat_template"])


def byte_level_bpe(tokens: Sequence[str], merges: Sequence[str], special: Sequence[str]) -> Any:
    """A `tokenizers.Tokenizer`: digits split singly, then byte-level BPE without a prefix space."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    pairs: list[tuple[str, str]] = []
    for merge in merges:
        left, _, right = merge.partition(" ")
        pairs.append((left, right))
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=pairs))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    return tokenizer


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False))


def main(argv: Sequence[str]) -> int:
    """Builds the folder; float32 on Linux, as quantised as the file is on macOS."""
    parser = argparse.ArgumentParser(prog="python -m worker.gguf", description="Makes an MLX folder from a GGUF file.")
    parser.add_argument("gguf", type=Path)
    parser.add_argument("folder", type=Path)
    args = parser.parse_args(argv)
    os.umask(0o022)
    try:
        build(args.gguf, args.folder, dequantize=sys.platform != "darwin")
    except FleetError as error:
        print(f"fleet: {error}", file=sys.stderr)
        return int(error.exit_code)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
