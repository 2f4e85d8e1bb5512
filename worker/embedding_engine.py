"""An engine that embeds: the loop for a loaded embedder, after it has said Ready."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import mlx.core as mx

from fleet.errors import ModelError
from fleet.messages import Message, Ready
from worker import memory
from worker.device import subject, working_set_bytes
from worker.embedding_batches import TOGETHER
from worker.embedding_loop import EmbeddingLoop, told_cap
from worker.embedding_model import LoadedEmbedder
from worker.faults import Faults
from worker.knee import Curve
from worker.knee_store import KneeStore
from worker.loop import Inbox
from worker.token_budget import SAMPLE_TOKENS, TokenBudget

#: Tokens of a batch until it is measured. On a CPU, 150 texts of mixed lengths through MiniLM took 2.24, 2.25, 2.54 and
#: 2.85 s of processor time in batches of 256, 512, 1,024 and 2,048 tokens.
CPU_TOKENS, GPU_TOKENS = 512, 8192


def start_embedding(
    loaded: LoadedEmbedder,
    *,
    cap: int,
    memory_bytes: int,
    inbox: Inbox,
    send: Callable[[Message], None],
    log_key: Callable[[bytes], None],
    faults: Faults,
    knees: Path | None = None,
) -> EmbeddingLoop:
    """ModelError when memory holds no text beside the weights. 0 for `cap` or `memory_bytes` is our own choice.

    `knees` is the file that remembers what was measured, None to measure anew.
    """
    working_set = memory_bytes or working_set_bytes()
    room = memory.budget_bytes(working_set_bytes=working_set, weight_bytes=loaded.weight_bytes, activation_bytes=0)
    most = room // (TOGETHER * loaded.token_bytes)
    if not most:
        raise ModelError(memory.too_little(loaded.weight_bytes + TOGETHER * loaded.token_bytes, working_set))
    store = KneeStore(knees, subject(f"{loaded.hash} embedding"))
    on_cpu = mx.default_device().type == mx.DeviceType.cpu
    budget = TokenBudget(
        provisional=CPU_TOKENS if on_cpu else GPU_TOKENS,
        most=most,
        curve=store.load().get(SAMPLE_TOKENS, Curve(bucket_tokens=SAMPLE_TOKENS)),
    )
    ready = Ready(
        model_hash=loaded.hash,
        cap=told_cap(budget.tokens),
        kv_bytes=loaded.token_bytes,
        budget_bytes=room,
        context_tokens=loaded.max_seq_tokens,
    )
    mx.clear_cache()
    mx.reset_peak_memory()
    send(ready)
    return EmbeddingLoop(
        loaded, ready, budget=budget, store=store, cap=cap, inbox=inbox, send=send, log_key=log_key, faults=faults
    )
