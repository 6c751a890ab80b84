"""One all-to-all of blocks that are padded to the largest that any pair could exchange."""

import jax
import jax.numpy as jnp
from jax import lax

from pallas_kernels.ragged_all_to_all.sizes import ExchangeSizes, source_of


def exchange(x: jax.Array, sizes: ExchangeSizes, rows: int, axis: str) -> jax.Array:
    """See `ragged_exchange`. A block has room for all rows of a rank: nothing is dropped."""
    most = min(x.shape[0], rows)
    place = jnp.arange(most, dtype=sizes.sent.dtype)
    at = jnp.clip(sizes.read_at[:, None] + place[None, :], 0, x.shape[0] - 1)
    blocks = _where(place[None, :] < sizes.sent[:, None], x[at])
    arrived = lax.all_to_all(blocks, axis, split_axis=0, concat_axis=0)
    rank, place, real = source_of(sizes, rows)
    return _where(real, arrived[rank, jnp.clip(place, 0, most - 1)])


def _where(real: jax.Array, x: jax.Array) -> jax.Array:
    return jnp.where(real.reshape(*real.shape, *(1,) * (x.ndim - real.ndim)), x, jnp.zeros((), x.dtype))
