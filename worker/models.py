"""A model loaded for an engine: found, checked against its hash, tested in a batch. The one user of mlx-lm's loader."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.utils import load_model

from fleet.errors import ModelError
from fleet.model import context_tokens, find_model, read_config, weights_hash
from worker.generation.batch import Generation
from worker.generation.rows import GenRow
from worker.generation.slots import why_single
from worker.knee import Prefill
from worker.memory import KV_STEP_TOKENS
from worker.sampling import greedy
from worker.solo import prefill
from worker.text import Text, eos_ids
from worker.thinking import Tags, find_tags

#: A batch may choose another token than a single row where the single row's logits are this close, as a share of
#: the distance from mean to best: half-precision products differ by order of summation, wrong masks by far more.
NEAR_TIE = 0.05
_TEST_LENGTHS = (4, 9, 17)
_TEST_NEW_TOKENS = 4


#: On a CPU chunks of 128 run 1.45x faster than one evaluation of 1,024, and prompts one by one faster than padded.
CPU_PREFILL = Prefill(rows=1, tokens=128)
#: A GPU wants about 2K tokens at once; longer evaluations trip its watchdog and starve cancellation.
GPU_PREFILL = Prefill(rows=8, tokens=2048)
#: What measuring may go up to: on a GPU for the same reasons, on a CPU because every sample takes its time.
MOST_CPU_PREFILL = Prefill(rows=4, tokens=512)
MOST_GPU_PREFILL = Prefill(rows=16, tokens=2048)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A model and what an engine must know of it."""

    model: Any
    text: Text
    #: tokens that end an answer
    eos: frozenset[int]
    #: sha256 of the weight files, hex
    hash: str
    context_tokens: int
    #: token ids are below this
    vocabulary: int
    #: bytes of KV a token takes, fixed state of a row spread over the first tokens
    kv_bytes: int
    weight_bytes: int
    prefill: Prefill
    #: why the model runs one row at a time, empty when it batches
    single: str
    #: what stands around its thinking, None for a model that does not think
    thinking: Tags | None = None


def load(source: str, expected_hash: str, hash_cache: Path) -> LoadedModel:
    """Loads the model at `source`; ModelError when it is not whole, not `expected_hash`, or not readable."""
    folder, found = find_weights(source, expected_hash, hash_cache)
    try:
        model, _ = load_model(folder)
    except (ValueError, TypeError, KeyError, RuntimeError, OSError) as error:
        raise ModelError(f"mlx-lm cannot load {source}: {error}") from error
    text = Text.load(folder)
    config = read_config(folder)
    return replace(describe(model, text, eos_ids(folder, text), config, found), thinking=find_tags(folder, text))


def find_weights(source: str, expected_hash: str, hash_cache: Path) -> tuple[Path, str]:
    """The folder of `source` and the hash of its weights; ModelError when it is not whole or not `expected_hash`."""
    folder = find_model(source)
    found = weights_hash(folder, hash_cache)
    if expected_hash and found != expected_hash:
        raise ModelError(
            f"the weights at {source} have hash {found[:12]}, the job was planned for {expected_hash[:12]}: "
            "the model changed, or this machine has another version of it"
        )
    return folder, found


def describe(model: Any, text: Text, eos: frozenset[int], config: dict[str, Any], hash: str) -> LoadedModel:
    """Probes a model in memory and tests that it batches."""
    on_cpu = mx.default_device().type == mx.DeviceType.cpu
    chosen = CPU_PREFILL if on_cpu else GPU_PREFILL
    vocabulary = vocabulary_of(config)
    single = why_single(make_prompt_cache(model)) or failed_self_test(model, vocabulary, chosen)
    return LoadedModel(
        model=model,
        text=text,
        eos=eos,
        hash=hash,
        context_tokens=context_tokens(config),
        vocabulary=vocabulary,
        kv_bytes=kv_bytes_per_token(model),
        weight_bytes=sum(weight.nbytes for _, weight in tree_flatten(model.parameters())),
        prefill=chosen,
        single=single,
    )


def most_prefill() -> Prefill:
    """No more prompts together, and no more tokens an evaluation, than this."""
    return MOST_CPU_PREFILL if mx.default_device().type == mx.DeviceType.cpu else MOST_GPU_PREFILL


def vocabulary_of(config: dict[str, Any]) -> int:
    """Token ids the model knows; ModelError when config.json does not say."""
    for part in (config, config.get("text_config") or {}):
        if isinstance(part.get("vocab_size"), int):
            return int(part["vocab_size"])
    raise ModelError("the model's config.json names no vocab_size")


def kv_bytes_per_token(model: Any) -> int:
    """Bytes that `KV_STEP_TOKENS` tokens take, per token: caches allocate that many at the first one."""
    caches = prefill(model, [1, 2], 2)
    total = sum(int(cache.nbytes) for cache in caches)
    return max(1, -(-total // KV_STEP_TOKENS))


def failed_self_test(model: Any, vocabulary: int, prefill: Prefill) -> str:
    """Decodes three unequal prompts together and checks each token against the row alone; what is wrong, in words."""
    prompts = [[(7 + 31 * at * length) % vocabulary for at in range(length)] for length in _TEST_LENGTHS]
    generation = Generation(model, prefill_rows=prefill.rows, prefill_tokens=prefill.tokens, eos=frozenset())
    rows = [
        GenRow(id=at, tokens=prompt, max_tokens=_TEST_NEW_TOKENS, sampler=greedy()) for at, prompt in enumerate(prompts)
    ]
    try:
        generation.insert(rows)
        chosen: dict[int, list[int]] = {row.id: [] for row in rows}
        while any(len(tokens) < _TEST_NEW_TOKENS for tokens in chosen.values()):
            for id, token, _ in generation.step():
                chosen[id].append(token)
    except (ValueError, TypeError, AttributeError, NotImplementedError) as error:
        return f"decoding rows together fails in mlx-lm ({type(error).__name__})"
    wrong = [id for id, prompt in enumerate(prompts) if not _agrees(model, prompt, chosen[id])]
    return f"{len(wrong)} of {len(rows)} test rows gave other tokens in a batch than alone" if wrong else ""


def _agrees(model: Any, prompt: list[int], chosen: list[int]) -> bool:
    """Whether each chosen token is the best, or nearly, of the row computed alone."""
    logits = model(mx.array([prompt + chosen[:-1]]), cache=make_prompt_cache(model))[0, len(prompt) - 1 :]
    logits = logits.astype(mx.float32)
    best = logits.max(axis=-1)
    taken = mx.take_along_axis(logits, mx.array(chosen)[:, None], axis=-1)[:, 0]
    spread = best - logits.mean(axis=-1)
    return bool(mx.all((spread > 0) & (best - taken <= NEAR_TIE * spread)).item())
