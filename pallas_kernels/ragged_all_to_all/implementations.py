"""Three ways to exchange rows of unequal number: XLA's ragged all-to-all, a padded all-to-all, and an all-gather.

All of them take what one of d ranks has, `x [n, ...]`, and return `[rows, ...]`; see `ragged_all_to_all`.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Int

MeshAxis = str | tuple[str, ...]
"""A mesh axis, or several, whose ranks count in row-major order."""


class ExchangeSizes(NamedTuple):
    """An exchange between d ranks, on one of them; offsets and sizes are in rows.

    Attributes:
        send_sizes, receive_sizes: Rows to and from each rank.
        input_offsets: Where the rows for each rank begin in this rank's input.
        output_offsets: Where they begin in that rank's output.
        received_offsets: Where the rows from each rank begin in this rank's output.
        source_offsets: Where they began in that rank's input.
    """

    send_sizes: Int[Array, " d"]
    receive_sizes: Int[Array, " d"]
    input_offsets: Int[Array, " d"]
    output_offsets: Int[Array, " d"]
    received_offsets: Int[Array, " d"]
    source_offsets: Int[Array, " d"]


def exchange_sizes(sizes: Int[Array, "d d"], axis: MeshAxis) -> ExchangeSizes:
    """This rank's view of what each rank sends to each other.

    The rows for rank 0 come first in every input, and the rows from rank 0 come first in every output.
    """
    rank = lax.axis_index(axis)
    input_offsets = _exclusive_cumsum(sizes, axis=1)  # [d, d]
    output_offsets = _exclusive_cumsum(sizes, axis=0)  # [d, d]

    def column(table: jax.Array) -> jax.Array:
        return lax.dynamic_index_in_dim(table, rank, axis=1, keepdims=False)  # [d, d] -> [d]

    def row(table: jax.Array) -> jax.Array:
        return lax.dynamic_index_in_dim(table, rank, axis=0, keepdims=False)  # [d, d] -> [d]

    return ExchangeSizes(
        send_sizes=row(sizes),
        receive_sizes=column(sizes),
        input_offsets=row(input_offsets),
        output_offsets=row(output_offsets),
        received_offsets=column(output_offsets),
        source_offsets=column(input_offsets),
    )


def _exclusive_cumsum(sizes: Int[Array, "d d"], axis: int) -> Int[Array, "d d"]:
    return jnp.cumsum(sizes, axis=axis) - sizes


def exchange_ragged(x: jax.Array, sizes: ExchangeSizes, rows: int, axis: MeshAxis) -> jax.Array:
    """Exchanges by `lax.ragged_all_to_all`, which sends only existing rows; XLA has it on GPUs and TPUs, not CPUs."""
    # Zeros that vary over the same mesh axes as x, so that the result has its type.
    zero_row = jnp.where(jnp.zeros((), jnp.bool_), x[:1], jnp.zeros((), x.dtype))
    output = jnp.broadcast_to(zero_row, (rows, *x.shape[1:]))
    return lax.ragged_all_to_all(
        x, output, sizes.input_offsets, sizes.send_sizes, sizes.output_offsets, sizes.receive_sizes, axis_name=axis
    )


def exchange_by_platform(x: jax.Array, sizes: ExchangeSizes, rows: int, axis: MeshAxis) -> jax.Array:
    """`exchange_gather` in programs for CPUs, for which XLA lacks the other, and `exchange_ragged` in all others."""
    gather, ragged = (
        functools.partial(exchange, rows=rows, axis=axis) for exchange in (exchange_gather, exchange_ragged)
    )
    return lax.platform_dependent(x, sizes, cpu=gather, default=ragged)


def exchange_padded(x: jax.Array, sizes: ExchangeSizes, rows: int, axis: MeshAxis) -> jax.Array:
    """Exchanges by one all-to-all of blocks padded to the most that two ranks could exchange: nothing is dropped."""
    block_rows = min(x.shape[0], rows)
    position = jnp.arange(block_rows, dtype=sizes.send_sizes.dtype)
    index = jnp.clip(sizes.input_offsets[:, None] + position[None, :], 0, x.shape[0] - 1)  # [d, block_rows]
    blocks = _zero_unless(position[None, :] < sizes.send_sizes[:, None], x[index])  # [d, block_rows, ...]
    received = lax.all_to_all(blocks, axis, split_axis=0, concat_axis=0)  # [d, block_rows, ...]
    source, position, is_row = _sources(sizes, rows)
    return _zero_unless(is_row, received[source, jnp.clip(position, 0, block_rows - 1)])  # [rows, ...]


def exchange_gather(x: jax.Array, sizes: ExchangeSizes, rows: int, axis: MeshAxis) -> jax.Array:
    """Exchanges by an all-gather, from which every rank picks its rows; runs everywhere, for ranks sharing memory."""
    everything = lax.all_gather(x, axis)  # [d, n, ...]
    source, position, is_row = _sources(sizes, rows)
    index = jnp.clip(sizes.source_offsets[source] + position, 0, x.shape[0] - 1)
    return _zero_unless(is_row, everything[source, index])  # [rows, ...]


def _sources(sizes: ExchangeSizes, rows: int) -> tuple[Int[Array, " rows"], Int[Array, " rows"], Bool[Array, " rows"]]:
    """For every output row the rank it comes from, its position in that rank's block, and whether there is one."""
    row = jnp.arange(rows, dtype=sizes.receive_sizes.dtype)
    ends = sizes.received_offsets + sizes.receive_sizes
    source = jnp.minimum(jnp.searchsorted(ends, row, side="right"), len(ends) - 1)
    return source, row - sizes.received_offsets[source], row < ends[-1]


def _zero_unless(is_row: jax.Array, x: jax.Array) -> jax.Array:
    return jnp.where(is_row.reshape(*is_row.shape, *(1,) * (x.ndim - is_row.ndim)), x, jnp.zeros((), x.dtype))
