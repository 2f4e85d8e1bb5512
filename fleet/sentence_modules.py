"""The modules of a sentence-transformers folder: what comes behind the hidden states. Checked, never guessed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from fleet.errors import ModelError

MODULES_FILE = "modules.json"
WEIGHTS_FILE = "model.safetensors"


class Pooling(StrEnum):
    """How the vectors of a text's tokens become one; the values are sentence-transformers' names."""

    MEAN = "mean"
    CLS = "cls"
    LAST = "lasttoken"
    MAX = "max"


class Activation(StrEnum):
    """What a Dense module puts its numbers through."""

    IDENTITY = "Identity"
    TANH = "Tanh"


@dataclass(frozen=True, slots=True, kw_only=True)
class Dense:
    """A linear layer behind the pooling."""

    #: safetensors file with `linear.weight`, and `linear.bias` where there is one
    weights: Path
    in_features: int
    out_features: int
    bias: bool
    activation: Activation


def module_folders(folder: Path, *, may_lack: bool) -> tuple[Path | None, list[Path]]:
    """The folders of the pooling and of the Dense modules; no pooling where modules.json `may_lack`."""
    if not (folder / MODULES_FILE).is_file():
        if may_lack:
            return None, []
        raise ModelError(
            f"{folder} has no {MODULES_FILE}, so it says not how tokens become a vector: "
            "take the model's folder as sentence-transformers has it"
        )
    modules = read_json(folder / MODULES_FILE, list)
    kinds = [_kind(module, folder) for module in modules]
    behind = kinds[2:-1] if kinds[-1:] == ["Normalize"] else kinds[2:]
    if kinds[:2] != ["Transformer", "Pooling"] or set(behind) - {"Dense"}:
        raise ModelError(f"{folder / MODULES_FILE} has the modules {', '.join(kinds)}: not an order that is done here")
    if modules[0].get("path"):
        raise ModelError(f"{folder / MODULES_FILE} has its Transformer in {modules[0]['path']!r}: not done here")
    paths = [folder / str(module.get("path") or "") for module in modules]
    return paths[1], [path for path, kind in zip(paths, kinds, strict=True) if kind == "Dense"]


def _kind(module: Any, folder: Path) -> str:
    """A module's class name; ModelError for one that we do not do."""
    name = str(module.get("type") if isinstance(module, dict) else module)
    kind = name.rpartition(".")[2]
    known = kind in ("Transformer", "Pooling", "Dense", "Normalize")
    if not known or not name.startswith("sentence_transformers."):
        raise ModelError(f"{folder / MODULES_FILE} asks for the module {name}, which is not done here")
    return kind


def read_pooling(path: Path, hidden: int) -> Pooling:
    config = read_json(path / "config.json", dict)
    width = config.get("word_embedding_dimension", config.get("embedding_dimension", hidden))
    if width != hidden:
        raise ModelError(f"{path} pools vectors of {width} numbers, and the model's have {hidden}")
    if config.get("include_prompt") is False:
        raise ModelError(f"{path} leaves the prompt's tokens out (include_prompt), which is not done here")
    named = config.get("pooling_mode")
    modes = [str(named)] if named is not None else _flagged_modes(config)
    if len(modes) != 1 or modes[0] not in {mode.value for mode in Pooling}:
        raise ModelError(f"{path} asks for the pooling {' and '.join(modes) or 'none'}, which is not done here")
    return Pooling(modes[0])


def _flagged_modes(config: Mapping[str, Any]) -> list[str]:
    """The modes whose flag is set; sentence-transformers sets that of the mean where it is not named."""
    prefix = "pooling_mode_"
    flags = {"pooling_mode_mean_tokens": True} | {name: config[name] for name in config if name.startswith(prefix)}
    return [name.removeprefix(prefix).removesuffix("_tokens").removesuffix("_token") for name in flags if flags[name]]


def read_dense(path: Path) -> Dense:
    config = read_json(path / "config.json", dict)
    activation = str(config.get("activation_function", "torch.nn.modules.activation.Tanh")).rpartition(".")[2]
    if activation not in {known.value for known in Activation}:
        raise ModelError(f"{path} asks for the activation {activation}, which is not done here")
    for name in ("module_input_name", "module_output_name"):
        if config.get(name) not in (None, "sentence_embedding"):
            raise ModelError(f"{path} asks for the {name} {config[name]!r}, which is not done here")
    if not (path / WEIGHTS_FILE).is_file():
        raise ModelError(f"{path} has no {WEIGHTS_FILE}: its weights are missing, or in a format that is not read")
    try:
        sizes = int(config["in_features"]), int(config["out_features"])
    except (KeyError, TypeError, ValueError) as error:
        raise ModelError(f"{path / 'config.json'} names no in_features and out_features") from error
    return Dense(
        weights=path / WEIGHTS_FILE,
        in_features=sizes[0],
        out_features=sizes[1],
        bias=bool(config.get("bias", True)),
        activation=Activation(activation),
    )


def read_json(path: Path, kind: type) -> Any:
    """The JSON list or dict in a file; ModelError when it holds no such thing."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read: {error}") from error
    if not isinstance(value, kind):
        raise ModelError(f"{path} is not a JSON {'object' if kind is dict else 'list'}")
    return value
