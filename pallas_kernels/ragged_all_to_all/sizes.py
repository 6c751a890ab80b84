"""How many rows go from each rank to each, and where they lie on both sides."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Int


class ExchangeSizes(NamedTuple):
    """An exchange as one rank sees it; d ranks.

    Attributes:
        sent, received: Rows to and from each rank.
        read_at: Where the rows for each rank begin here.
        written_at: Where they begin there.
        arrive_at: Where those of each rank begin here.
        taken_at: Where they began there.
    """

    sent: Int[Array, " d"]
    received: Int[Array, " d"]
    read_at: Int[Array, " d"]
    written_at: Int[Array, " d"]
    arrive_at: Int[Array, " d"]
    taken_at: Int[Array, " d"]


def exchange_sizes(sent: Int[Array, " d"], axis: str) -> ExchangeSizes:
    """Every rank's view, from what each sends: the rows for rank 0 lie first, what rank 0 sent arrives first."""
    pairs = lax.all_gather(sent, axis)
    me = lax.axis_index(axis)
    begin, arrive = _starts(pairs, 1), _starts(pairs, 0)

    def column(table: jax.Array) -> jax.Array:
        return lax.dynamic_index_in_dim(table, me, axis=1, keepdims=False)

    def row(table: jax.Array) -> jax.Array:
        return lax.dynamic_index_in_dim(table, me, axis=0, keepdims=False)

    return ExchangeSizes(row(pairs), column(pairs), row(begin), row(arrive), column(arrive), column(begin))


def _starts(pairs: Int[Array, "d d"], axis: int) -> Int[Array, "d d"]:
    return jnp.cumsum(pairs, axis=axis) - pairs


def source_of(sizes: ExchangeSizes, rows: int) -> tuple[Int[Array, " m"], Int[Array, " m"], Array]:
    """Of every row that is received: the rank it comes from, its place in that rank's block, whether there is one."""
    number = jnp.arange(rows, dtype=sizes.received.dtype)
    ends = sizes.arrive_at + sizes.received
    rank = jnp.minimum(jnp.searchsorted(ends, number, side="right"), len(ends) - 1)
    return rank, number - sizes.arrive_at[rank], number < ends[-1]
