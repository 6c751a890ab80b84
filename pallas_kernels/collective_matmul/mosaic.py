"""The collective matmuls as Hopper kernels where they can run, around the ring where not, saying why once.

A call is refused for its sizes and precision, for devices that are no Hopper GPUs, for axes that are left to XLA
(`mosaic_limits.py`). That a mesh is a part of the devices cannot be told in here: ask `mosaic_limits.mesh_refusal`
with the mesh before choosing this backend. Nothing of it was ever run on a GPU (see `mosaic_kernels.py`).

While such a kernel runs, it holds every multiprocessor and waits for the peers' kernels. Were a collective of another
kind to begin on one GPU before the kernel and on another after it, each could wait for the other for ever: programs
with these kernels must not run other collectives beside them. The one needed here, which gathers x once more for the
weight gradient, is held between the gradients' arrival and the next kernel.
"""

import functools
import logging
from collections.abc import Sequence
from types import ModuleType

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from pallas_kernels.collective_matmul import mosaic_support as mosaic_limits
from pallas_kernels.collective_matmul import reference, ring
from pallas_kernels.collective_matmul.reference import weight_gradient
from pallas_kernels.collective_matmul.tiling import CollectiveTiling
from pallas_kernels.varying import rank_count

_LOG = logging.getLogger(__name__)


def gather_matmul(
    x: jax.Array, weights: Sequence[jax.Array], axes: tuple[str, ...], tiling: CollectiveTiling, dtype: np.dtype
) -> tuple[jax.Array, ...]:
    """As `reference.gather_matmul`; the kernels have tiles of their own."""
    if _refused(x, [w.shape[1] for w in weights], axes, dtype):
        return ring.gather_matmul(x, weights, axes, tiling, dtype)
    products, _ = kernels().all_gather_matmul(_rows(x), tuple(weights), axes)
    return tuple(_joined(y, x.shape) for y in products)


def gather_matmul_backward(
    x: jax.Array,
    weights: Sequence[jax.Array],
    gradients: Sequence[jax.Array],
    axes: tuple[str, ...],
    tiling: CollectiveTiling,
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    """As `reference.gather_matmul_backward`. The sums for x overlap; x, gathered again for the weights, does not."""
    ranks = rank_count(axes)
    shares = jax.ShapeDtypeStruct((*x.shape[:-1], sum(w.shape[1] for w in weights)), x.dtype)
    if _refused(shares, [x.shape[-1]], axes, x.dtype):
        return ring.gather_matmul_backward(x, weights, gradients, axes, tiling)
    x, gradients = lax.optimization_barrier((x, tuple(gradients)))
    whole, gradients = lax.optimization_barrier((reference.all_gather_positions(x, axes), gradients))
    stacked = jnp.concatenate([w.T for w in weights])
    back = kernels().matmul_reduce_scatter(_chunks(jnp.concatenate(gradients, axis=-1), ranks), stacked, axes)
    return back.reshape(x.shape), tuple(weight_gradient(whole, y) for y in gradients)


def matmul_scatter(x: jax.Array, w: jax.Array, axes: tuple[str, ...], tiling: CollectiveTiling) -> jax.Array:
    """As `reference.matmul_scatter`."""
    share = _share(x, rank_count(axes))
    if _refused(share, [w.shape[1]], axes, x.dtype):
        return ring.matmul_scatter(x, w, axes, tiling)
    y = kernels().matmul_reduce_scatter(_chunks(x, rank_count(axes)), w, axes)
    return y.reshape(*share.shape[:-1], w.shape[1])


def matmul_scatter_backward(
    x: jax.Array, w: jax.Array, gradient: jax.Array, axes: tuple[str, ...], tiling: CollectiveTiling
) -> tuple[jax.Array, jax.Array]:
    """As `reference.matmul_scatter_backward`; one kernel gathers the gradient for both."""
    if _refused(gradient, [w.shape[0]], axes, x.dtype):
        return ring.matmul_scatter_backward(x, w, gradient, axes, tiling)
    (back,), whole = kernels().all_gather_matmul(_rows(gradient), (w.T,), axes)
    return _joined(back, gradient.shape), weight_gradient(x, _joined(whole, gradient.shape))


matmul_sum = ring.matmul_sum  # what all ranks get whole has no shares to pass on


def kernels() -> ModuleType:
    """The kernels; brought in when first used, because they bring all of Mosaic GPU."""
    from pallas_kernels.collective_matmul import mosaic_kernels

    return mosaic_kernels


def _refused(
    share: jax.Array | jax.ShapeDtypeStruct, widths: Sequence[int], axes: tuple[str, ...], dtype: jax.typing.DTypeLike
) -> bool:
    """Whether a rank's share `[..., s / n, d]` cannot be multiplied into these widths by a kernel. Says why, once."""
    rows, depth = share.size // share.shape[-1], share.shape[-1]
    reason = mosaic_limits.unsupported_traced_mesh_reason(jax.sharding.get_abstract_mesh(), axes)
    reason = reason or mosaic_limits.unsupported_shape_reason(rows, depth, widths, share.dtype)
    reason = reason or mosaic_limits.unsupported_shape_reason(rows, depth, widths, dtype)
    if reason:
        _tell(reason)
    return bool(reason)


@functools.cache
def _tell(reason: str) -> None:
    _LOG.warning("a collective matmul goes around the ring: %s", reason)


def _rows(x: jax.Array) -> jax.Array:
    """A rank's positions `[..., s / n, d]` one below the other."""
    return x.reshape(-1, x.shape[-1])


def _joined(y: jax.Array, share: tuple[int, ...]) -> jax.Array:
    """All positions `[..., s, f]` of the ranks' chunks of rows `[n, m, f]`, given the shape of a rank's share."""
    whole = jnp.moveaxis(y.reshape(y.shape[0], *share[:-1], y.shape[-1]), 0, -3)
    return whole.reshape(*share[:-2], -1, y.shape[-1])


def _chunks(x: jax.Array, ranks: int) -> jax.Array:
    """The ranks' chunks of rows `[n, m, d]` of all positions `[..., s, d]`."""
    parts = x.reshape(*x.shape[:-2], ranks, x.shape[-2] // ranks, x.shape[-1])
    return jnp.moveaxis(parts, -3, 0).reshape(ranks, -1, x.shape[-1])


def _share(x: jax.Array, ranks: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((*x.shape[:-2], x.shape[-2] // ranks, x.shape[-1]), x.dtype)
