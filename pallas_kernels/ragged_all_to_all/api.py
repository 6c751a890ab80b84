"""The differentiable ragged all-to-all; its gradient is the exchange that brings every row back.

Exchange hops and the dispatch of tokens to experts call `exchange_rows`.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Int

from pallas_kernels.ragged_all_to_all.implementations import (
    MeshAxis,
    exchange_by_platform,
    exchange_gather,
    exchange_padded,
    exchange_ragged,
    exchange_sizes,
)
from pallas_kernels.varying import rank_count

IMPLEMENTATIONS: dict[str, Callable[..., jax.Array]] = {
    "ragged": exchange_ragged,
    "padded": exchange_padded,
    "gather": exchange_gather,
}


def ragged_all_to_all(
    x: jax.Array,
    send_sizes: Int[Array, " d"],
    *,
    rows: int,
    axis: MeshAxis,
    implementation: str | None = None,
) -> jax.Array:
    """Sends rows of each rank of a mesh axis to each other rank; runs inside `jax.shard_map`.

    Args:
        x: This rank's rows `[n, ...]`: first the rows for rank 0, then the rows for rank 1, and so on; rows after them
            are not sent. The sum of `send_sizes` may not exceed n: the caller has to ensure that, because only the host
            knows the sizes.
        send_sizes: How many rows go to each rank.
        rows: Rows of the result; at least as many as any rank receives, which the caller has to ensure too.
        axis: The mesh axis, or several, whose ranks count in row-major order.
        implementation: `ragged` sends only the rows there are (`lax.ragged_all_to_all`; not on CPUs), `padded` sends
            blocks of min(n, rows) rows between each pair of ranks, `gather` sends all rows to all ranks. By default
            `gather` where the program is lowered for CPUs, whose ranks share memory, and `ragged` elsewhere.

    Returns:
        `[rows, ...]`: first what rank 0 sent, in its order, then what rank 1 sent, and so on; zeros after.

    Raises:
        ValueError: There is no such axis or implementation, or `send_sizes` has not one entry for each rank.
    """
    ranks = rank_count(_names(axis))
    if send_sizes.shape != (ranks,) or not jnp.issubdtype(send_sizes.dtype, jnp.integer):
        actual = f"{send_sizes.dtype}{list(send_sizes.shape)}"
        raise ValueError(f"send_sizes is {actual}; the axis {axis!r} needs one whole number for each of {ranks} ranks")
    sizes = lax.all_gather(send_sizes, axis)  # [d, d]
    return exchange_rows(x, sizes, rows=rows, axis=axis, implementation=implementation)


def exchange_rows(
    x: jax.Array,
    sizes: Int[Array, "d d"],
    *,
    rows: int,
    axis: MeshAxis,
    implementation: str | None = None,
) -> jax.Array:
    """`ragged_all_to_all` where every rank knows what each rank sends to each other.

    Args:
        x: This rank's rows `[n, ...]`, in the order of the ranks that they go to.
        sizes: How many rows go from each rank to each rank, the same in all ranks.
        rows: Rows of the result.
        axis: The mesh axis, or several.
        implementation: As in `ragged_all_to_all`.
    """
    if implementation is not None and implementation not in IMPLEMENTATIONS:
        raise ValueError(f"implementation is {implementation!r}; choose one of {', '.join(IMPLEMENTATIONS)}")
    ranks = rank_count(_names(axis))
    if sizes.shape != (ranks, ranks):
        raise ValueError(f"sizes is {list(sizes.shape)}; the axis {axis!r} needs [{ranks}, {ranks}]")
    if x.ndim < 1 or rows < 1:
        raise ValueError(f"x is {list(x.shape)} and rows is {rows}; x needs a dimension of rows, and rows must be > 0")
    return _exchange(x, sizes, rows, axis, implementation)


def _names(axis: MeshAxis) -> tuple[str, ...]:
    return (axis,) if isinstance(axis, str) else axis


# `lax.ragged_all_to_all` has a transpose of its own, for which wrong gradients are reported on GPUs; it is not used.
@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3, 4))
def _exchange(x: jax.Array, sizes: jax.Array, rows: int, axis: MeshAxis, implementation: str | None) -> jax.Array:
    exchange = exchange_by_platform if implementation is None else IMPLEMENTATIONS[implementation]
    return exchange(x, exchange_sizes(sizes, axis), rows, axis)


def _forward(x: jax.Array, sizes: jax.Array, rows: int, axis: MeshAxis, implementation: str | None) -> tuple:
    shape_of_x = jnp.zeros((x.shape[0], 0), x.dtype)  # [n, 0]: carries n at no cost
    return _exchange(x, sizes, rows, axis, implementation), (shape_of_x, sizes)


def _backward(rows: int, axis: MeshAxis, implementation: str | None, residuals: tuple, cotangent: jax.Array) -> tuple:
    """Sends the cotangents of the rows from each rank back to it, in the order in which the rows were sent."""
    shape_of_x, sizes = residuals
    gradient = _exchange(cotangent, sizes.T, shape_of_x.shape[0], axis, implementation)
    return gradient, np.zeros(sizes.shape, jax.dtypes.float0)


_exchange.defvjp(_forward, _backward)
