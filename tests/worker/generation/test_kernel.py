"""The CUDA kernel against MLX's attention; on other machines, what it would be asked for."""

import mlx.core as mx
import pytest

from worker.generation.kernel import cuda_kernel, fits

pytestmark = pytest.mark.mlx

on_cuda = pytest.mark.skipif(not mx.cuda.is_available(), reason="needs CUDA")


def inputs(
    heads: int = 8, key_heads: int = 2, tokens: int = 1, dim: int = 64, dtype: mx.Dtype = mx.bfloat16
) -> tuple[mx.array, mx.array, mx.array]:
    queries = mx.random.normal((5, heads, tokens, dim)).astype(dtype)
    buffers = [mx.random.normal((9, key_heads, 320, dim)).astype(dtype) for _ in "kv"]
    keys, values = (buffer[:5, :, :300] for buffer in buffers)
    return queries, keys, values


@on_cuda
@pytest.mark.parametrize(
    ("repeats", "dim", "dtype"),
    [(3, 64, mx.bfloat16), (4, 128, mx.bfloat16), (7, 128, mx.float16), (8, 256, mx.bfloat16), (1, 64, mx.float16)],
)
def test_a_row_attends_to_its_own_columns(repeats: int, dim: int, dtype: mx.Dtype) -> None:
    kernel = cuda_kernel()
    assert kernel is not None
    queries, keys, values = inputs(heads=2 * repeats, dim=dim, dtype=dtype)
    spans = mx.array([[0, 300], [0, 1], [17, 40], [299, 300], [3, 258]], dtype=mx.int32)
    columns = mx.arange(300)
    seen = (columns >= spans[:, :1]) & (columns < spans[:, 1:])
    exact = [array.astype(mx.float32) for array in (queries, keys, values)]
    right = mx.fast.scaled_dot_product_attention(*exact, scale=0.1, mask=seen[:, None, None])
    got = kernel(queries, keys, values, spans, mx.array([0.1], dtype=mx.float32))
    assert got.dtype == dtype
    assert mx.abs(got.astype(mx.float32) - right).max().item() < 0.02


@pytest.mark.skipif(mx.cuda.is_available(), reason="has CUDA")
def test_without_cuda_there_is_no_kernel() -> None:
    assert cuda_kernel() is None


def test_it_takes_one_query_a_row_of_half_precision_and_common_dimensions() -> None:
    assert fits(*inputs())
    assert fits(*inputs(heads=14, dim=128, dtype=mx.float16))


@pytest.mark.parametrize("other", [{"tokens": 2}, {"dim": 80}, {"dtype": mx.float32}, {"heads": 18}])
def test_it_takes_nothing_else(other: dict[str, int]) -> None:
    assert not fits(*inputs(**other))  # type: ignore[arg-type]
