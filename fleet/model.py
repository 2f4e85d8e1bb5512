"""A model's files: where they are, whether they are complete, and the hashes that name them."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fleet.errors import ModelError

#: Any one of these makes a tokenizer that the coordinator can load without mlx.
TOKENIZER_FILE = "tokenizer.json"
TEMPLATE_FILES = ("chat_template.jinja", "chat_template.json")
_READ_BYTES = 8 << 20
#: What errors of the hub client mean, by the name of their class.
_HUB_ERRORS = {
    "GatedRepoError": "the hub gives it only to accounts that were let in: ask there for access, then log in",
    "RepositoryNotFoundError": "the hub has no public model of this name: check the name, or log in there",
    "HFValidationError": "the hub can have no model of this name: check the name",
    "LocalEntryNotFoundError": "the hub cannot be reached and no copy is kept from before: check the network, "
    "or give a local folder",
}


def find_model(source: str) -> Path:
    """The folder of `source`, a local folder or a hub id (fetched into the hub's cache when not there yet).

    Raises ModelError naming what is missing.
    """
    path = Path(source).expanduser()
    if path.is_dir():
        folder = path.resolve()
    elif path.exists() or source.startswith(("/", "./", "../", "~")) or source.count("/") != 1:
        raise ModelError(f"no model folder at {source}: give a folder with config.json, or a hub id like org/name")
    else:
        folder = _from_hub(source)
    check_folder(folder)
    return folder


def _from_hub(source: str) -> Path:
    from huggingface_hub import snapshot_download

    patterns = ["*.json", "*.safetensors", "*.jinja", "*.txt", "*.model", "tokenizer*"]
    try:
        return Path(snapshot_download(source, allow_patterns=patterns))
    except Exception as error:  # the hub client raises many kinds; all mean the same to a person
        raise ModelError(f"there is no folder {source} here, and {_why_no_fetch(error)}") from error


def _why_no_fetch(error: Exception) -> str:
    """What an error of the hub client comes to, and what to do."""
    kinds = [kind.__name__ for kind in type(error).__mro__]
    told = next((_HUB_ERRORS[kind] for kind in kinds if kind in _HUB_ERRORS), None)
    other = f"fetching it from the hub failed ({kinds[0]}): check the name and the network, or give a local folder"
    return told or other


def check_folder(folder: Path) -> None:
    """Raises ModelError naming the first file that a model folder needs and `folder` lacks."""
    if not (folder / "config.json").is_file():
        raise ModelError(f"{folder} has no config.json: is it a model folder?")
    if not weight_files(folder):
        raise ModelError(f"{folder} has no *.safetensors: the weights are missing")
    if not (folder / TOKENIZER_FILE).is_file():
        raise ModelError(f"{folder} has no {TOKENIZER_FILE}: the tokenizer is missing")


def weight_files(folder: Path) -> list[Path]:
    """The weight files, by name."""
    return sorted(folder.glob("*.safetensors"))


def read_config(folder: Path) -> dict[str, Any]:
    """config.json; ModelError when it is not a JSON object."""
    try:
        config = json.loads((folder / "config.json").read_text())
    except (OSError, ValueError) as error:
        raise ModelError(f"{folder / 'config.json'} cannot be read: {error}") from error
    if not isinstance(config, dict):
        raise ModelError(f"{folder / 'config.json'} is not a JSON object")
    return config


def context_tokens(config: dict[str, Any]) -> int:
    """Tokens the model can hold, prompt and answer; nested text_config of multimodal models included."""
    for part in (config, config.get("text_config") or {}):
        for name in ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length"):
            if isinstance(part.get(name), int):
                return int(part[name])
    return 1 << 20  # state-space models name no limit


def weights_hash(folder: Path, cache: Path) -> str:
    """sha256 over the weight files' names and bytes, hex; `cache` (a JSON file) remembers it by path, size, mtime."""
    files = weight_files(folder)
    stamp = "|".join(f"{f}:{f.stat().st_size}:{f.stat().st_mtime_ns}" for f in files)
    known = _read_cache(cache).get(stamp)
    if known is None:
        known = _hash_files(files)
        cache.parent.mkdir(parents=True, exist_ok=True)
        # its own name: a coordinator that prepares another job and an engine may write at the same time
        draft = cache.with_suffix(f".{os.getpid()}-{threading.get_ident()}.tmp")
        draft.write_text(json.dumps({**_read_cache(cache), stamp: known}, indent=1))
        draft.replace(cache)
    return known


def tokenizer_hash(folder: Path) -> str:
    """sha256 over the files that decide how text becomes tokens, hex."""
    names = (TOKENIZER_FILE, "tokenizer_config.json", *TEMPLATE_FILES)
    return _hash_files(folder / name for name in names if (folder / name).is_file())


def _hash_files(files: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for path in files:
        digest.update(path.name.encode() + b"\0" + str(path.stat().st_size).encode() + b"\0")
        with path.open("rb") as stream:
            while block := stream.read(_READ_BYTES):
                digest.update(block)
    return digest.hexdigest()


def _read_cache(cache: Path) -> dict[str, str]:
    try:
        known = json.loads(cache.read_text())
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}
