"""The matmuls of layers, by how their weight is split: with the collectives that a plan chose.

Where the tensor ranks divide the positions of a row (sequence parallelism, arXiv 2205.05198), a weight split by columns
takes them gathered, and one split by rows gives them scattered; else all ranks have all positions.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from mmjax.models.activations import Activations
from pallas_kernels.collective_matmul import (
    all_gather_matmul,
    divided,
    matmul_all_reduce,
    matmul_reduce_scatter,
    whole,
)
from sharding.axes import Axes

MATMUL = "matmul"
"""The name of what selective recomputation keeps."""


def named(y: jax.Array) -> jax.Array:
    """The result of a matmul or a convolution with weights, under its name."""
    return checkpoint_name(y, MATMUL)


def by_columns(x: Activations, weights: tuple[jax.Array, ...], axes: Axes) -> tuple[jax.Array, ...]:
    """x times this rank's columns of some weights `[d, f_i]`: `[..., f_i]` each, for all positions."""
    if axes.sequence:
        ys = all_gather_matmul(x, weights, axes.tensor, backend=axes.matmul)
    else:
        ys = tuple(jnp.matmul(x, w) for w in weights)
    return tuple(map(named, ys))


def by_vocabulary(x: Activations, table: jax.Array, axes: Axes) -> jax.Array:
    """x times this rank's rows of a table `[v, d]`, as columns: `[..., v]` in float32, for all positions."""
    if axes.sequence:
        (y,) = all_gather_matmul(x, (table,), axes.tensor, backend=axes.matmul, transposed=True, dtype=jnp.float32)
    else:
        y = jnp.einsum("...d,vd->...v", x, table, preferred_element_type=jnp.float32)
    return named(y)


def by_rows(x: Activations, w: jax.Array, axes: Axes) -> jax.Array:
    """The ranks' sum of x `[..., d]` times this rank's rows of a weight: `[..., f]`, for the rank's own positions."""
    if not axes.tensor:
        return named(jnp.matmul(x, w))
    summed = matmul_reduce_scatter if axes.sequence else matmul_all_reduce
    return named(summed(x, w, axes.tensor, backend=axes.matmul))


def _alone(x: Activations, w: jax.Array, axes: Axes) -> jax.Array:
    return named(jnp.matmul(x, w))


def _columns(x: Activations, w: jax.Array, axes: Axes) -> jax.Array:
    return by_columns(x, (w,), axes)[0]


SPLITS: dict[str | None, Callable[[Activations, jax.Array, Axes], jax.Array]] = {
    None: _alone,
    "columns": _columns,
    "rows": by_rows,
}


def split_matmul(x: Activations, w: jax.Array, split: str | None, axes: Axes) -> jax.Array:
    """x `[..., d]` times a weight `[d, f]` that is whole (None) or split over the tensor ranks by columns or rows."""
    return SPLITS[split](x, w, axes)


def row_sum(y: jax.Array, split: str | None, axes: Axes) -> jax.Array:
    """The ranks' sum of a convolution's results where its input channels are split ("rows")."""
    return named(lax.psum(y, axes.tensor) if split == "rows" and axes.tensor else y)


def own_positions(x: jax.Array, axes: Axes) -> jax.Array:
    """Of what all ranks have, `[r, s, ...]`, the positions of this rank; all where they are not divided."""
    return divided(x, axes.sequence, axis=1) if axes.sequence else x


def all_positions(x: jax.Array, axes: Axes) -> jax.Array:
    """The inverse of `own_positions`."""
    return whole(x, axes.sequence, axis=1) if axes.sequence else x
