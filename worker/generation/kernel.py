"""Attention of one new token a row, on CUDA: each row reads its own columns, all query heads of a key head together.

MLX's fused kernels for one query take no mask there, so rows of unequal length would run unfused. Measured on an H200,
64 rows of 288-800 tokens, 32 heads over 8, dimension 128, bfloat16: 486 us a layer unfused, 73 by this kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx

#: A lane reads eight numbers at once, 16 bytes.
_DTYPES = (mx.bfloat16, mx.float16)
#: Head dimensions whose lanes divide a warp.
_DIMS = (64, 128, 256)
#: Query heads a key head at most: more would not fit the registers.
_MOST_REPEATS = 8
#: Keys a group of lanes has on the way; 1 took 84 us where 2 took 73 and 4 took 71.
_UNROLL = 2

# A block has one key head of one row. Its threads form groups of LANES, which take turns at the columns and keep a
# running softmax each; at the end the groups' parts are joined.
_SOURCE = """
  constexpr int V = 8;
  constexpr int LANES = D / V;
  constexpr int GROUPS = THREADS / LANES;
  __shared__ float part_max[GROUPS][R];
  __shared__ float part_sum[GROUPS][R];
  __shared__ float part_out[GROUPS][R][D];
  const int lane = threadIdx.x % LANES;
  const int group = threadIdx.x / LANES;
  const int head = blockIdx.y;
  const int row = blockIdx.z;
  const int begin = spans[2 * row];
  const int end = spans[2 * row + 1];
  const float scale_log2 = scale[0] * 1.44269504f;
  float q[R][V], o[R][V], top[R], sum[R];
  #pragma unroll
  for (int r = 0; r < R; r++) {
    const T* query = queries + row * queries_strides[0] + (head * R + r) * queries_strides[1] + lane * V;
    top[r] = -1e30f;
    sum[r] = 0.f;
    #pragma unroll
    for (int j = 0; j < V; j++) {
      q[r][j] = scale_log2 * static_cast<float>(query[j]);
      o[r][j] = 0.f;
    }
  }
  const T* key = keys + row * keys_strides[0] + head * keys_strides[1] + lane * V;
  const T* value = values + row * values_strides[0] + head * values_strides[1] + lane * V;
  for (int first = begin; first < end; first += GROUPS * UNROLL) {
    uint4 key_bits[UNROLL], value_bits[UNROLL];
    #pragma unroll
    for (int u = 0; u < UNROLL; u++) {
      const int i = min(first + u * GROUPS + group, end - 1);
      key_bits[u] = *reinterpret_cast<const uint4*>(key + i * keys_strides[2]);
      value_bits[u] = *reinterpret_cast<const uint4*>(value + i * values_strides[2]);
    }
    #pragma unroll
    for (int u = 0; u < UNROLL; u++) {
      const T* key_parts = reinterpret_cast<const T*>(&key_bits[u]);
      const T* value_parts = reinterpret_cast<const T*>(&value_bits[u]);
      float k[V], v[V];
      #pragma unroll
      for (int j = 0; j < V; j++) {
        k[j] = static_cast<float>(key_parts[j]);
        v[j] = static_cast<float>(value_parts[j]);
      }
      #pragma unroll
      for (int r = 0; r < R; r++) {
        float score = 0.f;
        #pragma unroll
        for (int j = 0; j < V; j++) score += q[r][j] * k[j];
        #pragma unroll
        for (int w = LANES / 2; w > 0; w /= 2) score += __shfl_xor_sync(0xffffffffu, score, w);
        if (first + u * GROUPS + group >= end) score = __int_as_float(0xff800000);  // -inf
        const float higher = max(top[r], score);
        const float kept = exp2f(top[r] - higher);
        const float weight = exp2f(score - higher);
        top[r] = higher;
        sum[r] = sum[r] * kept + weight;
        #pragma unroll
        for (int j = 0; j < V; j++) o[r][j] = o[r][j] * kept + weight * v[j];
      }
    }
  }
  #pragma unroll
  for (int r = 0; r < R; r++) {
    if (lane == 0) {
      part_max[group][r] = top[r];
      part_sum[group][r] = sum[r];
    }
    #pragma unroll
    for (int j = 0; j < V; j++) part_out[group][r][lane * V + j] = o[r][j];
  }
  __syncthreads();
  for (int e = threadIdx.x; e < R * D; e += THREADS) {
    const int r = e / D, d = e % D;
    float highest = -1e30f;
    for (int g = 0; g < GROUPS; g++) highest = max(highest, part_max[g][r]);
    float weights = 0.f, weighted = 0.f;
    for (int g = 0; g < GROUPS; g++) {
      const float share = exp2f(part_max[g][r] - highest);
      weights += part_sum[g][r] * share;
      weighted += part_out[g][r][d] * share;
    }
    const int64_t at = (static_cast<int64_t>(row) * gridDim.y + head) * R * D;
    out[at + e] = static_cast<T>(weights > 0.f ? weighted / weights : 0.f);
  }
"""

#: (queries, keys, values, spans, scale) -> attention, all as for `attend`.
Kernel = Callable[[mx.array, mx.array, mx.array, mx.array, mx.array], mx.array]


def cuda_kernel() -> Kernel | None:
    """The kernel on CUDA, compiled when it is first used; None elsewhere."""
    if not mx.cuda.is_available():
        return None
    call: Any = mx.fast.cuda_kernel(
        name="attention_of_rows",
        input_names=["queries", "keys", "values", "spans", "scale"],
        output_names=["out"],
        source=_SOURCE,
        ensure_row_contiguous=False,
    )

    def kernel(queries: mx.array, keys: mx.array, values: mx.array, spans: mx.array, scale: mx.array) -> mx.array:
        rows, heads, _, dim = queries.shape
        repeats = heads // keys.shape[1]
        threads = 256 if 2 * repeats <= _MOST_REPEATS else 128
        sizes = [("T", queries.dtype), ("D", dim), ("R", repeats), ("THREADS", threads), ("UNROLL", _UNROLL)]
        made: list[mx.array] = call(
            inputs=[queries, keys, values, spans, scale],
            template=sizes,
            grid=(threads, keys.shape[1], rows),
            threadgroup=(threads, 1, 1),
            output_shapes=[queries.shape],
            output_dtypes=[queries.dtype],
        )
        return made[0]

    return kernel


def fits(queries: mx.array, keys: mx.array, values: mx.array) -> bool:
    """Whether the kernel does attention of these shapes and types."""
    rows, heads, tokens, dim = queries.shape
    return bool(
        tokens == 1
        and dim in _DIMS
        and keys.shape[3] == values.shape[3] == dim
        and keys.shape[0] == rows
        and heads % keys.shape[1] == 0
        and heads // keys.shape[1] <= _MOST_REPEATS
        and queries.dtype == keys.dtype == values.dtype
        and queries.dtype in _DTYPES
    )
