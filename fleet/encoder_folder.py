"""How a model folder makes vectors, from its own files: sentence-transformers' modules, pooling, length and prompts.

What a folder asks for and we do not do is a ModelError that names it: a vector is right, or there is none.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fleet.errors import ModelError
from fleet.model import context_tokens, read_config
from fleet.sentence_modules import (
    MODULES_FILE,
    WEIGHTS_FILE,
    Dense,
    Pooling,
    module_folders,
    read_dense,
    read_json,
    read_pooling,
)

#: `model_type` of the encoders we compute; any other model is taken for a decoder.
ENCODERS = frozenset({"bert", "camembert", "roberta", "xlm-roberta"})
#: Encoders whose positions begin behind the padding token's.
OFFSET_POSITIONS = frozenset({"camembert", "roberta", "xlm-roberta"})
#: sentence-transformers looks for these in turn.
_LENGTH_FILES = tuple(
    f"sentence_{name}_config.json" for name in ("bert", "roberta", "distilbert", "camembert", "xlm-roberta")
)
_PROMPTS_FILE = "config_sentence_transformers.json"
#: What Qwen3-Embedding's card ends every text with, also where a conversion lost the tokenizer's template for it.
_QWEN3_END = "<|endoftext|>"
_HASH_BLOCK_BYTES = 8 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderFolder:
    """What a folder says of its vectors; they are always made unit length in the end."""

    folder: Path
    #: config.json
    config: Mapping[str, Any] = field(repr=False)
    #: a language model whose hidden states are taken, rather than an encoder
    decoder: bool
    pooling: Pooling
    dense: tuple[Dense, ...]
    #: numbers in a vector
    dimension: int
    #: shorter vectors the model was trained for: their first so many numbers; empty when it declares none
    matryoshka: tuple[int, ...]
    #: tokens of a text at most, special tokens and prompt counted; the folder's own max_seq_length
    max_seq_tokens: int
    #: texts to put in front, by name ("query", "passage"); may be empty
    prompts: Mapping[str, str]
    #: name of the prompt that is used where none is asked for, empty for none
    default_prompt: str
    #: token that the engine puts behind texts that do not end in it, None for none; `max_seq_tokens` leaves room for it
    end_token: int | None
    #: sha256, hex, of all that decides how tokens become a vector beside the weight files
    hash: str


def read_encoder(folder: Path) -> EncoderFolder:
    """Reads a model folder; ModelError when it says not how to make vectors, or asks for what we do not do."""
    config = read_config(folder)
    model_type = str(config.get("model_type"))
    decoder = model_type not in ENCODERS
    _check_config(config, folder)
    pooling_folder, dense_folders = module_folders(folder, may_lack=decoder and model_type == "qwen3")
    hidden = _hidden_size(config, folder)
    pooling = read_pooling(pooling_folder, hidden) if pooling_folder else Pooling.LAST
    dense = tuple(read_dense(path) for path in dense_folders)
    dimension = _dimension(hidden, dense, folder)
    end_token = _end_token(folder, model_type) if decoder and pooling is Pooling.LAST else None
    prompts, default_prompt = _prompts(folder)
    return EncoderFolder(
        folder=folder,
        config=config,
        decoder=decoder,
        pooling=pooling,
        dense=dense,
        dimension=dimension,
        matryoshka=_matryoshka(config, dimension),
        max_seq_tokens=_max_seq_tokens(folder, config) - (end_token is not None),
        prompts=prompts,
        default_prompt=default_prompt,
        end_token=end_token,
        hash=_hash(folder, pooling_folder, dense_folders),
    )


def _check_config(config: Mapping[str, Any], folder: Path) -> None:
    if "AutoModel" in (config.get("auto_map") or {}):
        raise ModelError(f"{folder} brings Python code of its own (auto_map), which is never run: take another model")
    for name, wrong in (("is_causal", False), ("use_bidirectional_attention", True)):
        if config.get("model_type") not in ENCODERS and config.get(name) is wrong:
            raise ModelError(f"{folder} asks for {name} {json.dumps(wrong)}, and language models here are causal only")


def _hidden_size(config: Mapping[str, Any], folder: Path) -> int:
    for part in (config, config.get("text_config") or {}):
        if isinstance(part.get("hidden_size"), int):
            return int(part["hidden_size"])
    raise ModelError(f"{folder / 'config.json'} names no hidden_size")


def _dimension(hidden: int, dense: tuple[Dense, ...], folder: Path) -> int:
    width = hidden
    for layer in dense:
        if layer.in_features != width:
            raise ModelError(f"{folder} has a Dense module for {layer.in_features} numbers where {width} come in")
        width = layer.out_features
    return width


# -- lengths, prompts, ends ------------------------------------------------------------------------


def _max_seq_tokens(folder: Path, config: dict[str, Any]) -> int:
    """max_seq_length where the folder has one, and never more than the model has positions."""
    offset = int(config.get("pad_token_id", 1)) + 1 if config.get("model_type") in OFFSET_POSITIONS else 0
    limits: list[Any] = [context_tokens(config) - offset]
    own: dict[str, Any] = next(
        (read_json(folder / name, dict) for name in _LENGTH_FILES if (folder / name).is_file()), {}
    )
    if own.get("do_lower_case") and not _lowers(folder):
        raise ModelError(f"{folder} asks for texts in lower case (do_lower_case), which its tokenizer does not do")
    if isinstance(own.get("max_seq_length"), int):
        limits.append(own["max_seq_length"])
    else:
        limits.append(_tokenizer_config(folder).get("model_max_length"))
    return int(min(limit for limit in limits if isinstance(limit, int | float) and limit > 0))


def _lowers(folder: Path) -> bool:
    normalizer = read_json(folder / "tokenizer.json", dict).get("normalizer") or {}
    steps = [normalizer, *(normalizer.get("normalizers") or [])]
    return any(step.get("type") == "Lowercase" or step.get("lowercase") for step in steps)


def _prompts(folder: Path) -> tuple[dict[str, str], str]:
    path = folder / _PROMPTS_FILE
    said = read_json(path, dict) if path.is_file() else {}
    prompts = said.get("prompts") or {}
    default = said.get("default_prompt_name") or ""
    if not isinstance(prompts, dict) or not all(isinstance(text, str) for text in prompts.values()):
        raise ModelError(f"{path} has prompts that are no texts by name")
    if default and default not in prompts:
        raise ModelError(f"{path} names the default prompt {default!r}, which is not among its prompts")
    return prompts, str(default)


def _matryoshka(config: Mapping[str, Any], dimension: int) -> tuple[int, ...]:
    declared = config.get("matryoshka_dimensions")
    if isinstance(declared, list):
        return tuple(sorted({size for size in declared if isinstance(size, int) and 0 < size <= dimension}))
    return tuple(range(1, dimension + 1)) if config.get("is_matryoshka") is True else ()


def _end_token(folder: Path, model_type: str) -> int | None:
    """The token that must end a text and that the tokenizer does not put there itself."""
    said = _tokenizer_config(folder)
    wanted = said.get("eos_token") if said.get("add_eos_token") else _QWEN3_END if model_type == "qwen3" else None
    tokenizer = read_json(folder / "tokenizer.json", dict)
    if wanted is None or _closes(tokenizer.get("post_processor") or {}):
        return None
    text = wanted.get("content") if isinstance(wanted, dict) else wanted
    ids = [added.get("id") for added in tokenizer.get("added_tokens") or [] if added.get("content") == text]
    if not ids:
        raise ModelError(f"{folder} ends its texts with the token {text!r}, which its tokenizer does not have")
    return int(ids[0])


def _closes(processor: Mapping[str, Any]) -> bool:
    """Whether a tokenizer's post-processor puts a special token behind a text."""
    steps = [processor, *(processor.get("processors") or [])]
    templates = [step.get("single") for step in steps if step.get("type") == "TemplateProcessing"]
    return any(template and "SpecialToken" in template[-1] for template in templates)


def _tokenizer_config(folder: Path) -> dict[str, Any]:
    path = folder / "tokenizer_config.json"
    said: dict[str, Any] = read_json(path, dict) if path.is_file() else {}
    return said


# -- hash ---------------------------------------------------------------------------------------


def _hash(folder: Path, pooling: Path | None, dense: list[Path]) -> str:
    parts = [folder / "config.json", folder / MODULES_FILE]
    parts += [pooling / "config.json"] if pooling else []
    parts += [path / name for path in dense for name in ("config.json", WEIGHTS_FILE)]
    digest = hashlib.sha256()
    for path in parts:
        digest.update(str(path.relative_to(folder)).encode() + b"\0")
        if path.is_file():
            with path.open("rb") as stream:
                while block := stream.read(_HASH_BLOCK_BYTES):
                    digest.update(block)
        digest.update(b"\0")
    return digest.hexdigest()
