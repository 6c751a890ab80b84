"""Matmuls of tensor parallelism, by how their weight is split, with the collectives that the plan chose.

With sequence parallelism (arXiv 2205.05198) the positions of a row are divided over the tensor ranks between matmuls: a
column-parallel matmul all-gathers its input first, a row-parallel one reduce-scatters its result. Without it every
rank has all positions, and a row-parallel matmul ends with an all-reduce. Where context-parallel ranks divide a row
(`context_parallel`), "all positions" means all positions of one context-parallel rank.
"""

from typing import Literal

import jax
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from mmjax.models.layers.activations import Activations
from pallas_kernels.collective_matmul import (
    all_gather_matmul,
    gather_sequence,
    matmul_all_reduce,
    matmul_reduce_scatter,
    split_sequence,
)
from pallas_kernels.fp8 import MatmulFormat
from pallas_kernels.matmul import matmul
from pallas_kernels.varying import make_varying
from sharding.axes import Axes

WeightSplit = Literal["columns", "rows"] | None
"""Which dimension of a weight `[inputs, outputs]` is split over the tensor ranks: outputs, inputs or none."""

MATMUL_CHECKPOINT_NAME = "matmul"
"""Name (`jax.ad_checkpoint.checkpoint_name`) of the results that selective recomputation saves."""

SMALL_RESULT_CHECKPOINT_NAME = "small_result"
"""Name of results of a few bytes a token that every recomputation policy saves: computing them again costs much."""


def mark_saveable(y: jax.Array) -> jax.Array:
    """Names the result of a matmul or a convolution with weights, so that a recomputation policy can save it."""
    return checkpoint_name(y, MATMUL_CHECKPOINT_NAME)


def column_parallel_matmuls(
    x: Activations, weights: tuple[jax.Array, ...], axes: Axes, matmul_format: MatmulFormat = "native"
) -> tuple[jax.Array, ...]:
    """Multiplies x by this rank's columns of several weights; positions are gathered once for all of them.

    Args:
        x: `[..., d]`, with this rank's positions where `axes.sequence` divides them.
        weights: This rank's columns of each weight, `[d, f_i]`.
        axes: Mesh axes.
        matmul_format: Format of the operands.

    Returns:
        One `[..., f_i]` per weight, at all positions.
    """
    if axes.sequence:
        backend = axes.collective_matmul
        ys = all_gather_matmul(x, weights, axes.tensor, backend=backend, matmul_format=matmul_format)
    else:
        # Once for all weights: cast implicitly for each, x would be saved for each, and its gradient summed for each.
        x = make_varying(x, axes.tensor)
        ys = tuple(matmul(x, weight, matmul_format) for weight in weights)
    return tuple(map(mark_saveable, ys))


def first_vocabulary_row(local_rows: int, axes: Axes) -> jax.Array | int:
    """Number of the first row of the embedding table that this tensor rank holds."""
    return lax.axis_index(axes.tensor) * local_rows if axes.tensor else 0


def row_parallel_matmul(
    x: Activations, weight: jax.Array, axes: Axes, matmul_format: MatmulFormat = "native"
) -> jax.Array:
    """Multiplies x by this rank's rows of a weight and sums over the tensor ranks.

    Args:
        x: This rank's slice of the inputs, `[..., d]`, at all positions.
        weight: This rank's rows, `[d, f]`.
        axes: Mesh axes.
        matmul_format: Format of the operands.

    Returns:
        `[..., f]`, at this rank's positions where `axes.sequence` divides them.
    """
    if not axes.tensor:
        return mark_saveable(matmul(x, weight, matmul_format))
    matmul_and_sum = matmul_reduce_scatter if axes.sequence else matmul_all_reduce
    backend = axes.collective_matmul
    return mark_saveable(matmul_and_sum(x, weight, axes.tensor, backend=backend, matmul_format=matmul_format))


def tensor_parallel_matmul(
    x: Activations, weight: jax.Array, split: WeightSplit, axes: Axes, matmul_format: MatmulFormat = "native"
) -> jax.Array:
    """Multiplies x `[..., d]` by a weight `[d, f]` that is split over the tensor ranks by columns, by rows or not."""
    if split == "columns":
        return column_parallel_matmuls(x, (weight,), axes, matmul_format)[0]
    if split == "rows":
        return row_parallel_matmul(x, weight, axes, matmul_format)
    return mark_saveable(matmul(x, weight, matmul_format))


def reduce_row_parallel(y: jax.Array, split: WeightSplit, axes: Axes) -> jax.Array:
    """Sums a convolution's result over the tensor ranks where they divide its input channels (split "rows")."""
    return mark_saveable(lax.psum(y, axes.tensor) if split == "rows" and axes.tensor else y)


def sequence_positions(x: jax.Array, axes: Axes) -> jax.Array:
    """Takes this tensor rank's positions of its context-parallel rank's; all where `axes.sequence` is empty."""
    return split_sequence(x, axes.sequence, axis=1) if axes.sequence else x


def gather_for_columns(x: Activations, axes: Axes) -> Activations:
    """All positions, as a weight split by columns needs them: the gradients of the tensor ranks are summed.

    Where `axes.sequence` divides the positions, by a reduce-scatter.
    """
    if axes.sequence:
        return lax.all_gather(x, axes.sequence, axis=x.ndim - 2, tiled=True)
    return make_varying(x, axes.tensor)


def all_gather_sequence(x: jax.Array, axes: Axes) -> jax.Array:
    """All-gathers the positions of this context-parallel rank over its tensor ranks; inverts `sequence_positions`."""
    return gather_sequence(x, axes.sequence, axis=1) if axes.sequence else x
