"""What fits: pure arithmetic over bytes of KV, and the reading of the machine's limits at the rim."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path

#: Bytes a row takes while rows join and leave, over the bytes of its KV alone: what mlx-lm 0.32.2 was seen to take,
#: which copies the batch then. Ours copies less, so this is on the safe side.
COPY_FACTOR = 2.0
#: Share of the working set that we plan with; the rest is for what nobody counted.
PLANNED_SHARE = 0.85
#: Share of a Linux machine's free memory taken as the working set: other programs live there too.
LINUX_SHARE = 0.5
#: Share of the rows' bytes that computed prefixes may take: they are worth more than the rows they displace, but rows
#: must still fit beside them.
PREFIX_SHARE = 1 / 4
#: What MLX says when an allocation fails: "[malloc] Unable to allocate", "[metal::malloc] Attempting to allocate ...
#: greater than the maximum allowed buffer size", "Insufficient Memory (...OutOfMemory)", CUDA's "out of memory".
_SHORTAGE = ("unable to allocate", "attempting to allocate", "insufficient memory", "out of memory")
#: MLX grows a KV cache by this many tokens at a time.
KV_STEP_TOKENS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one row, and all rows together, may take."""

    #: prompt and answer of one row
    context_tokens: int
    #: rows x the longest of them, in charged tokens, at most
    budget_tokens: int
    #: bytes of KV a token takes
    kv_bytes: int


def budget_bytes(*, working_set_bytes: int, weight_bytes: int, activation_bytes: int) -> int:
    """Bytes left for rows, never negative."""
    return max(0, int(PLANNED_SHARE * working_set_bytes) - weight_bytes - activation_bytes)


def limits(*, context_tokens: int, kv_bytes: int, budget_bytes: int) -> Limits:
    """The limits in tokens; the copies that joining makes are in them."""
    budget_tokens = int(budget_bytes / (kv_bytes * COPY_FACTOR))
    return Limits(context_tokens=context_tokens, budget_tokens=budget_tokens, kv_bytes=kv_bytes)


def model_refusal(*, working_set_bytes: int, weight_bytes: int, activation_bytes: int, limits: Limits) -> str | None:
    """Why not even a short row can run beside the weights, in a sentence with figures; None when one can."""
    if limits.budget_tokens >= KV_STEP_TOKENS:
        return None
    row_bytes = KV_STEP_TOKENS * limits.kv_bytes * COPY_FACTOR
    return too_little(weight_bytes + activation_bytes + row_bytes, working_set_bytes)


def too_little(needed_bytes: float, working_set_bytes: int) -> str:
    """The sentence for a model that leaves no room to `needed_bytes`, its own and those of one short row."""
    return (
        f"the model and one short row need {_mib(needed_bytes / PLANNED_SHARE)} of memory, and the engine may use "
        f"{_mib(working_set_bytes)}: give it more with --memory, or take a smaller model"
    )


def tokens_of(held_bytes: int, limits: Limits) -> int:
    """What `held_bytes` beside the rows take of the budget, in its tokens."""
    return math.ceil(held_bytes / (limits.kv_bytes * COPY_FACTOR))


def charged_tokens(prompt_tokens: int, max_tokens: int) -> int:
    """Tokens of KV a row will have at its end, rounded up to how MLX allocates."""
    total = prompt_tokens + max_tokens
    return -(-total // KV_STEP_TOKENS) * KV_STEP_TOKENS


def refusal(prompt_tokens: int, max_tokens: int, limits: Limits) -> str | None:
    """Why this row can never run, in a sentence with figures; None when it can."""
    if prompt_tokens + max_tokens > limits.context_tokens:
        return (
            f"{prompt_tokens} prompt tokens and {max_tokens} new ones are over "
            f"the model's context of {limits.context_tokens} tokens"
        )
    charged = charged_tokens(prompt_tokens, max_tokens)
    if charged > limits.budget_tokens:
        needed = charged * limits.kv_bytes * COPY_FACTOR
        present = limits.budget_tokens * limits.kv_bytes * COPY_FACTOR
        return (
            f"{prompt_tokens} prompt tokens and {max_tokens} new ones need {_mib(needed)} of memory, "
            f"and {_mib(present)} are left beside the model"
        )
    return None


def text_refusal(tokens: int, *, token_bytes: int, budget_bytes: int) -> str | None:
    """Why a text can never be embedded, in a sentence with figures; None when it can."""
    if tokens * token_bytes <= budget_bytes:
        return None
    return (
        f"{tokens} tokens need {_mib(tokens * token_bytes)} of memory, "
        f"and {_mib(budget_bytes)} are left beside the model"
    )


def whole_tokens(limits: Limits) -> int:
    """Tokens of KV that fit while no row joins or leaves, so that nothing is copied."""
    return int(limits.budget_tokens * COPY_FACTOR)


def is_shortage(error: BaseException) -> bool:
    """Whether MLX failed for want of memory; its backends have no error class of their own for that."""
    if isinstance(error, MemoryError):
        return True
    told = str(error).lower()
    return isinstance(error, RuntimeError) and any(words in told for words in _SHORTAGE)


def _mib(count: float) -> str:
    mib = count / 2**20
    return f"{mib:,.0f} MiB" if mib >= 100 else f"{mib:.1f} MiB"


def linux_working_set_bytes(meminfo: str, own_bytes: int) -> int:
    """A share of what /proc/meminfo calls available, and what we hold already."""
    for line in meminfo.splitlines():
        if line.startswith("MemAvailable:"):
            return int(LINUX_SHARE * int(line.split()[1]) * 1024) + own_bytes
    return int(LINUX_SHARE * os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))


def read_linux_working_set_bytes(own_bytes: int) -> int:
    """The same, of this machine now."""
    return linux_working_set_bytes(Path("/proc/meminfo").read_text(), own_bytes)
