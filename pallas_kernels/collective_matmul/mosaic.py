"""The collective matmuls as Hopper kernels where these can run, and on the ring elsewhere, logging why once.

A call falls back for its sizes or precision, for operands in FP8, for devices that are no Hopper GPUs, and for mesh
axes that are left to XLA (`mosaic_support.py`). That a mesh holds only some of the devices is not known here: ask
`mosaic_support.unsupported_mesh_reason` with the mesh before choosing this backend. None of this was ever run on a GPU
(see `mosaic_kernels.py`).

While such a kernel runs, it occupies every multiprocessor and waits for the peers' kernels. If another collective
began before the kernel on one GPU and after it on another, each could wait for the other for ever: programs with these
kernels must not run other collectives at the same time. The one needed here, which gathers x once more for the wgrad,
is kept by barriers between the arrival of the cotangents and the next kernel.
"""

from collections.abc import Sequence
from types import ModuleType

import jax
import jax.numpy as jnp
from jax import lax

from pallas_kernels.collective_matmul import mosaic_support, reference, ring
from pallas_kernels.collective_matmul.tiling import CollectiveTiling
from pallas_kernels.fallbacks import warn_once
from pallas_kernels.fp8 import MatmulFormat
from pallas_kernels.matmul import weight_gradient
from pallas_kernels.varying import rank_count


def gather_matmul(
    x: jax.Array,
    weights: Sequence[jax.Array],
    axes: tuple[str, ...],
    tiling: CollectiveTiling,
    matmul_format: MatmulFormat,
) -> tuple[jax.Array, ...]:
    """See `reference.gather_matmul`; the tiling is the ring's, the kernels have tiles of their own."""
    if _falls_back(x, [w.shape[1] for w in weights], axes, matmul_format):
        return ring.gather_matmul(x, weights, axes, tiling, matmul_format)
    products, _ = kernels().all_gather_matmul(_merge_rows(x), tuple(weights), axes)
    return tuple(_join_positions(y, x.shape) for y in products)


def gather_matmul_backward(
    x: jax.Array,
    weights: Sequence[jax.Array],
    cotangents: Sequence[jax.Array],
    axes: tuple[str, ...],
    tiling: CollectiveTiling,
    matmul_format: MatmulFormat,
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    """See `reference.gather_matmul_backward`; the sums of the dgrad overlap, the gather of x does not."""
    ranks = rank_count(axes)
    cotangent_shard = jax.ShapeDtypeStruct((*x.shape[:-1], sum(w.shape[1] for w in weights)), x.dtype)
    if _falls_back(cotangent_shard, [x.shape[-1]], axes, matmul_format):
        return ring.gather_matmul_backward(x, weights, cotangents, axes, tiling, matmul_format)
    x, cotangents = lax.optimization_barrier((x, tuple(cotangents)))
    gathered, cotangents = lax.optimization_barrier((reference.all_gather_positions(x, axes), cotangents))
    stacked = jnp.concatenate([w.T for w in weights])  # [sum of f_i, d]
    chunks = _split_positions(jnp.concatenate(cotangents, axis=-1), ranks)  # [n, m, sum of f_i]
    dgrad = kernels().matmul_reduce_scatter(chunks, stacked, axes)  # [m, d]
    return dgrad.reshape(x.shape), tuple(weight_gradient(gathered, y) for y in cotangents)


def matmul_scatter(
    x: jax.Array, w: jax.Array, axes: tuple[str, ...], tiling: CollectiveTiling, matmul_format: MatmulFormat
) -> jax.Array:
    """See `reference.matmul_scatter`."""
    shard = _shard_shape(x, rank_count(axes))
    if _falls_back(shard, [w.shape[1]], axes, matmul_format):
        return ring.matmul_scatter(x, w, axes, tiling, matmul_format)
    y = kernels().matmul_reduce_scatter(_split_positions(x, rank_count(axes)), w, axes)  # [m, f]
    return y.reshape(*shard.shape[:-1], w.shape[1])


def matmul_scatter_backward(
    x: jax.Array,
    w: jax.Array,
    cotangent: jax.Array,
    axes: tuple[str, ...],
    tiling: CollectiveTiling,
    matmul_format: MatmulFormat,
) -> tuple[jax.Array, jax.Array]:
    """See `reference.matmul_scatter_backward`; one kernel gathers the cotangent for both gradients."""
    if _falls_back(cotangent, [w.shape[0]], axes, matmul_format):
        return ring.matmul_scatter_backward(x, w, cotangent, axes, tiling, matmul_format)
    (dgrad,), gathered = kernels().all_gather_matmul(_merge_rows(cotangent), (w.T,), axes)
    return _join_positions(dgrad, cotangent.shape), weight_gradient(x, _join_positions(gathered, cotangent.shape))


matmul_sum = ring.matmul_sum  # the result is replicated: there are no shards to send


def kernels() -> ModuleType:
    """The kernels; imported on first use, because they import all of Mosaic GPU."""
    from pallas_kernels.collective_matmul import mosaic_kernels

    return mosaic_kernels


def _falls_back(
    shard: jax.Array | jax.ShapeDtypeStruct, widths: Sequence[int], axes: tuple[str, ...], matmul_format: MatmulFormat
) -> bool:
    """Whether no kernel can multiply a rank's shard `[..., s / n, d]` into these widths; logs the reason once."""
    rows, depth = shard.size // shard.shape[-1], shard.shape[-1]
    reason = mosaic_support.unsupported_traced_mesh_reason(jax.sharding.get_abstract_mesh(), axes)
    reason = reason or ("the kernels multiply no FP8" if matmul_format == "fp8" else "")
    reason = reason or mosaic_support.unsupported_shape_reason(rows, depth, widths, shard.dtype)
    if reason:
        warn_once(f"a collective matmul uses the ring instead of a mosaic kernel: {reason}")
    return bool(reason)


def _merge_rows(x: jax.Array) -> jax.Array:
    """Merges leading dimensions and positions into rows: [..., s / n, d] -> [m, d]."""
    return x.reshape(-1, x.shape[-1])


def _join_positions(y: jax.Array, shard: tuple[int, ...]) -> jax.Array:
    """The ranks' chunks of rows as positions, [n, m, f] -> [..., s, f], given the shape of a rank's shard."""
    joined = jnp.moveaxis(y.reshape(y.shape[0], *shard[:-1], y.shape[-1]), 0, -3)  # [..., n, s / n, f]
    return joined.reshape(*shard[:-2], -1, y.shape[-1])


def _split_positions(x: jax.Array, ranks: int) -> jax.Array:
    """Positions as the ranks' chunks of rows: [..., s, d] -> [n, m, d]."""
    parts = x.reshape(*x.shape[:-2], ranks, x.shape[-2] // ranks, x.shape[-1])  # [..., n, s / n, d]
    return jnp.moveaxis(parts, -3, 0).reshape(ranks, -1, x.shape[-1])


def _shard_shape(x: jax.Array, ranks: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((*x.shape[:-2], x.shape[-2] // ranks, x.shape[-1]), x.dtype)
