"""Computed prefixes are kept while there is room."""

from collections.abc import Sequence

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import KVCache

from worker.generation.prefill import Prefix
from worker.prefixes import PrefixStore, unpack

TOKEN_BYTES = 8


class Computer:
    """Computes prefixes of TOKEN_BYTES a token and remembers which."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def __call__(self, tokens: Sequence[int]) -> Prefix:
        self.asked.append(len(tokens))
        cache = KVCache()
        cache.keys = cache.values = mx.zeros((1, 1, len(tokens), 1), dtype=mx.float32)
        return Prefix(tokens=tuple(tokens), caches=(cache,))


def packed(count: int) -> bytes:
    return np.arange(count, dtype="<u4").tobytes()


def store(compute: Computer, limit_tokens: int) -> PrefixStore:
    return PrefixStore(compute, limit_bytes=limit_tokens * TOKEN_BYTES, kv_bytes=TOKEN_BYTES)


def test_a_prefix_is_computed_once_and_its_bytes_count() -> None:
    compute = Computer()
    prefixes = store(compute, 100)
    first = prefixes.get(packed(30))
    assert prefixes.get(packed(30)) is first
    assert first is not None
    assert first.tokens == tuple(range(30))
    assert compute.asked == [30]
    assert prefixes.nbytes == 30 * TOKEN_BYTES


def test_the_least_recently_used_goes_when_there_is_no_room() -> None:
    compute = Computer()
    prefixes = store(compute, 100)
    for count in (40, 50, 40, 30, 40, 50):
        prefixes.get(packed(count))
    assert compute.asked == [40, 50, 30, 50]
    assert prefixes.nbytes == 90 * TOKEN_BYTES


def test_a_prefix_over_the_limit_is_not_computed() -> None:
    compute = Computer()
    assert store(compute, 100).get(packed(101)) is None
    assert compute.asked == []


def test_no_prefix_is_none() -> None:
    assert store(Computer(), 100).get(b"") is None


def test_packed_tokens_are_little_endian() -> None:
    assert unpack(b"\x01\0\0\0\0\1\0\0") == [1, 256]
