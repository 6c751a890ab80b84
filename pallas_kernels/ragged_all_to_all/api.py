"""The exchange that callers use; its gradient is the exchange that brings everything back."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from pallas_kernels.ragged_all_to_all import gather, padded, ragged
from pallas_kernels.ragged_all_to_all.sizes import exchange_sizes
from pallas_kernels.varying import rank_count

IMPLEMENTATIONS: dict[str, Callable[..., jax.Array]] = {
    "ragged": ragged.exchange,
    "padded": padded.exchange,
    "gather": gather.exchange,
}


def ragged_all_to_all(
    x: jax.Array, sent: Int[Array, " d"], *, rows: int, axis: str, implementation: str | None = None
) -> jax.Array:
    """Sends rows of each rank of a mesh axis to each other rank; runs inside `jax.shard_map`.

    Args:
        x: This rank's rows `[n, ...]`: first those for rank 0, then those for rank 1, and so on; what follows is not
            sent. Their sum may not exceed n: that is the caller's to hold, because only the host knows the sizes.
        sent: How many of them go to each rank.
        rows: Rows to make room for; at least as many as any rank receives, which is the caller's to hold too.
        axis: The mesh axis.
        implementation: `ragged` moves only the rows there are (`lax.ragged_all_to_all`; not on CPUs), `padded` blocks
            of min(n, rows) rows a pair, `gather` all rows to all ranks. By default `gather` on CPUs, whose ranks share
            memory, and `padded` elsewhere: of `ragged` wrong gradients and hangs are reported on GPUs.

    Returns:
        `[rows, ...]`: first what rank 0 sent, in its order, then what rank 1 did, and so on; zeros behind.

    Raises:
        ValueError: There is no such axis or implementation, or `sent` has not one entry a rank.
    """
    chosen = implementation or ("gather" if jax.default_backend() == "cpu" else "padded")
    if chosen not in IMPLEMENTATIONS:
        raise ValueError(f"implementation is {chosen!r}; choose one of {', '.join(IMPLEMENTATIONS)}")
    ranks = rank_count((axis,))
    if sent.shape != (ranks,) or not jnp.issubdtype(sent.dtype, jnp.integer):
        given = f"{sent.dtype}{list(sent.shape)}"
        raise ValueError(f"sent is {given}; the axis {axis!r} needs one whole number for each of {ranks} ranks")
    if x.ndim < 1 or rows < 1:
        raise ValueError(f"x is {list(x.shape)} and rows is {rows}; give rows along the first dimension, and room")
    return _exchange(x, sent, rows, axis, chosen)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3, 4))
def _exchange(x: jax.Array, sent: jax.Array, rows: int, axis: str, implementation: str) -> jax.Array:
    return IMPLEMENTATIONS[implementation](x, exchange_sizes(sent, axis), rows, axis)


def _forward(x: jax.Array, sent: jax.Array, rows: int, axis: str, implementation: str) -> tuple:
    return _exchange(x, sent, rows, axis, implementation), (jnp.zeros((x.shape[0], 0), x.dtype), sent)


def _backward(rows: int, axis: str, implementation: str, kept: tuple, cotangent: jax.Array) -> tuple:
    """What came from a rank goes back to it, in the order in which it was sent."""
    of_x, sent = kept
    received = exchange_sizes(sent, axis).received
    back = _exchange(cotangent, received, of_x.shape[0], axis, implementation)
    return back, np.zeros(sent.shape, jax.dtypes.float0)


_exchange.defvjp(_forward, _backward)
