"""XLA's own ragged all-to-all, which moves the rows that there are and no others; GPUs have it, CPUs don't."""

import jax
import jax.numpy as jnp
from jax import lax

from pallas_kernels.ragged_all_to_all.sizes import ExchangeSizes


def exchange(x: jax.Array, sizes: ExchangeSizes, rows: int, axis: str) -> jax.Array:
    """See `ragged_exchange`."""
    # Zeros that differ between the ranks that x differs between, as far as jax knows: the result is of their type.
    nothing = jnp.where(jnp.zeros((), jnp.bool_), x[:1], jnp.zeros((), x.dtype))
    room = jnp.broadcast_to(nothing, (rows, *x.shape[1:]))
    return lax.ragged_all_to_all(x, room, sizes.read_at, sizes.sent, sizes.written_at, sizes.received, axis_name=axis)
