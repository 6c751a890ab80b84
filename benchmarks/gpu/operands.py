"""Random operands of the kernels in `benchmarks.gpu`, the same numbers for every framework."""

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.gpu.sizes import AttentionHeads, ExpertMatmul
from pallas_kernels.packed_attention import SegmentMask, make_segment_mask


def random_heads(rows: int, length: int, heads: AttentionHeads, dtype: str) -> list[jax.Array]:
    """Query, key, value and a cotangent of the output, `[r, s, h, e]`."""
    return [jnp.asarray(array, dtype) for array in normal_heads(rows, length, heads)]


@functools.lru_cache(maxsize=1)
def normal_heads(rows: int, length: int, heads: AttentionHeads) -> list[np.ndarray]:
    """The arrays of `random_heads` as NumPy arrays in float32."""
    random = np.random.default_rng(0)
    counts = (heads.query, heads.key, heads.key, heads.query)
    return [random.standard_normal((rows, length, count, heads.width), np.float32) for count in counts]


def causal_mask(segments: Sequence[Sequence[int]], padding: int) -> tuple[np.ndarray, SegmentMask]:
    """Segment of each position, int32 `[r, s]`, and the causal mask, from the lengths of each row's segments."""
    ids = np.stack([np.append(np.repeat(np.arange(1, len(row) + 1), row), np.zeros(padding, int)) for row in segments])
    ids = ids.astype(np.int32)
    return ids, make_segment_mask(ids, causal=True)


def all_gather_operands(ranks: int, shape: tuple[int, int, int]) -> tuple[jax.Array, jax.Array]:
    """For an all-gather matmul: each rank's rows `[n, m / n, d]`, and columns of the weight `[n, d, f]`."""
    m, d, f = shape
    return _normal((ranks, m // ranks, d)), _normal((ranks, d, f))


def reduce_scatter_operands(ranks: int, shape: tuple[int, int, int]) -> tuple[jax.Array, jax.Array]:
    """For a matmul reduce-scatter: each rank's shard of all rows `[n, n, m / n, d]`, rows of the weight `[n, d, f]`."""
    m, d, f = shape
    return _normal((ranks, ranks, m // ranks, d)), _normal((ranks, d, f))


def grouped_operands(sizes: ExpertMatmul, dtype: str) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Rows, matrices, sizes of the groups as a router of even loads draws them, and a cotangent."""
    random = np.random.default_rng(0)
    shapes = ((sizes.rows, sizes.inner), (sizes.groups, sizes.inner, sizes.outer), (sizes.rows, sizes.outer))
    x, matrices, cotangent = (jnp.asarray(random.standard_normal(shape, np.float32), dtype) for shape in shapes)
    group_sizes = random.multinomial(sizes.rows, [1 / sizes.groups] * sizes.groups)
    return x, matrices, jnp.asarray(group_sizes, jnp.int32), cotangent


def _normal(shape: tuple[int, ...]) -> jax.Array:
    return jnp.asarray(np.random.default_rng(len(shape)).standard_normal(shape, np.float32), jnp.bfloat16)
