"""The differentiable ragged all-to-all; its gradient is the exchange that brings every row back."""

import functools
from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Int

from pallas_kernels.ragged_all_to_all.implementations import (
    exchange_gather,
    exchange_padded,
    exchange_ragged,
    exchange_sizes,
)
from pallas_kernels.varying import rank_count

Implementation = Literal["ragged", "padded", "gather"]

IMPLEMENTATIONS: dict[str, Callable[..., jax.Array]] = {
    "ragged": exchange_ragged,
    "padded": exchange_padded,
    "gather": exchange_gather,
}


def ragged_all_to_all(
    x: jax.Array, send_sizes: Int[Array, " d"], *, rows: int, axis: str, implementation: str | None = None
) -> jax.Array:
    """Sends rows of each rank of a mesh axis to each other rank; runs inside `jax.shard_map`.

    Args:
        x: This rank's rows `[n, ...]`: first those for rank 0, then those for rank 1, and so on; rows after them are
            not sent. The sum of `send_sizes` may not exceed n: the caller has to ensure that, because only the host
            knows the sizes.
        send_sizes: How many rows go to each rank.
        rows: Rows of the result; at least as many as any rank receives, which the caller has to ensure too.
        axis: The mesh axis.
        implementation: `ragged` sends only the rows there are (`lax.ragged_all_to_all`; not on CPUs), `padded` sends
            blocks of min(n, rows) rows between each pair of ranks, `gather` sends all rows to all ranks. By default
            `gather` on CPUs, whose ranks share memory, and `padded` elsewhere: for `ragged`, wrong gradients and hangs
            are reported on GPUs.

    Returns:
        `[rows, ...]`: first what rank 0 sent, in its order, then what rank 1 sent, and so on; zeros after.

    Raises:
        ValueError: There is no such axis or implementation, or `send_sizes` has not one entry for each rank.
    """
    chosen, ranks = _choose_implementation(implementation), rank_count((axis,))
    if send_sizes.shape != (ranks,) or not jnp.issubdtype(send_sizes.dtype, jnp.integer):
        actual = f"{send_sizes.dtype}{list(send_sizes.shape)}"
        raise ValueError(f"send_sizes is {actual}; the axis {axis!r} needs one whole number for each of {ranks} ranks")
    if x.ndim < 1 or rows < 1:
        raise ValueError(f"x is {list(x.shape)} and rows is {rows}; x needs a dimension of rows, and rows must be > 0")
    return _exchange(x, send_sizes, rows, axis, chosen)


def exchange_rows(
    x: jax.Array, sizes: Int[Array, "d d"], *, rows: int, axis: str, implementation: str | None = None
) -> jax.Array:
    """`ragged_all_to_all` without a gradient, where every rank knows what each rank sends to each other.

    Args:
        x: This rank's rows `[n, ...]`, in the order of the ranks that they go to.
        sizes: How many rows go from each rank to each rank, the same in all ranks.
        rows: Rows of the result.
        axis: The mesh axis.
        implementation: As there.
    """
    chosen, ranks = _choose_implementation(implementation), rank_count((axis,))
    if sizes.shape != (ranks, ranks):
        raise ValueError(f"sizes is {list(sizes.shape)}; the axis {axis!r} needs [{ranks}, {ranks}]")
    return IMPLEMENTATIONS[chosen](x, exchange_sizes(sizes, axis), rows, axis)


def _choose_implementation(name: str | None) -> str:
    chosen = name or ("gather" if jax.default_backend() == "cpu" else "padded")
    if chosen not in IMPLEMENTATIONS:
        raise ValueError(f"implementation is {chosen!r}; choose one of {', '.join(IMPLEMENTATIONS)}")
    return chosen


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3, 4))
def _exchange(x: jax.Array, send_sizes: jax.Array, rows: int, axis: str, implementation: str) -> jax.Array:
    sizes = exchange_sizes(lax.all_gather(send_sizes, axis), axis)
    return IMPLEMENTATIONS[implementation](x, sizes, rows, axis)


def _forward(x: jax.Array, send_sizes: jax.Array, rows: int, axis: str, implementation: str) -> tuple:
    shape_of_x = jnp.zeros((x.shape[0], 0), x.dtype)  # [n, 0]: carries n at no cost
    return _exchange(x, send_sizes, rows, axis, implementation), (shape_of_x, send_sizes)


def _backward(rows: int, axis: str, implementation: str, residuals: tuple, cotangent: jax.Array) -> tuple:
    """What came from a rank goes back to it, in the order in which it was sent."""
    shape_of_x, send_sizes = residuals
    receive_sizes = exchange_sizes(lax.all_gather(send_sizes, axis), axis).receive_sizes
    gradient = _exchange(cotangent, receive_sizes, shape_of_x.shape[0], axis, implementation)
    return gradient, np.zeros(send_sizes.shape, jax.dtypes.float0)


_exchange.defvjp(_forward, _backward)
