"""Every rank gets all rows and picks its own: what runs everywhere, a stand-in where ranks share a host."""

import jax
import jax.numpy as jnp
from jax import lax

from pallas_kernels.ragged_all_to_all.sizes import ExchangeSizes, source_of


def exchange(x: jax.Array, sizes: ExchangeSizes, rows: int, axis: str) -> jax.Array:
    """See `ragged_exchange`."""
    everything = lax.all_gather(x, axis)
    rank, place, real = source_of(sizes, rows)
    at = jnp.clip(sizes.taken_at[rank] + place, 0, x.shape[0] - 1)
    return jnp.where(real.reshape(-1, *(1,) * (x.ndim - 1)), everything[rank, at], jnp.zeros((), x.dtype))
