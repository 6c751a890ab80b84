"""How the positions of a row are divided over the ranks of ring attention, so that all have as much to compute.

In causal attention a position attends to all before it, so that the last of contiguous chunks costs most. A row is
therefore cut into chunks, which go to the ranks in ascending and descending order by turns: of 4 ranks, chunks 0 to 7
go to ranks 0 1 2 3 3 2 1 0, and so on. Megatron-LM has two chunks for each rank. Here a chunk is as small as a block of
attention: the segments of a packed row then reach all ranks, and what these compute is as even as causal attention over
the whole row would be (`python -m benchmarks.context_parallel`). Models with context-parallel ranks divide and gather
their rows in this order.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Int

from pallas_kernels.collective_matmul import gather_sequence, split_sequence
from pallas_kernels.packed_attention.block_pairs import default_block_size
from pallas_kernels.varying import rank_count


def chunk_size(length: int, ranks: int) -> int:
    """Positions of a chunk of a row: the fewest that are not fewer than a block's; at most half of a rank's.

    Raises:
        ValueError: Two chunks for each of the ranks do not divide the positions.
    """
    if length % (2 * ranks):
        raise ValueError(f"{ranks} ranks cannot take two chunks each of a row of {length} positions")
    longest, block = length // (2 * ranks), default_block_size(length // ranks)
    divisors = (longest // count for count in range(1, longest + 1) if longest % count == 0)
    return min((size for size in divisors if size >= block), default=longest)


@functools.lru_cache
def zigzag_order(length: int, ranks: int) -> Int[np.ndarray, " s"]:
    """Places in the row of all positions, in the order of the ranks that have them.

    Raises:
        ValueError: Two chunks for each of the ranks do not divide the positions.
    """
    chunk = chunk_size(length, ranks)
    turns = np.arange(length // chunk) % (2 * ranks)
    rank_of_chunk = np.minimum(turns, 2 * ranks - 1 - turns)
    chunks = np.argsort(rank_of_chunk, kind="stable")
    return (chunks[:, None] * chunk + np.arange(chunk)).reshape(-1)


def to_zigzag(x: jax.Array, ranks: int, axis: int = 1) -> jax.Array:
    """Reorders positions by rank."""
    return _reorder(x, ranks, axis, inverse=False)


def from_zigzag(x: jax.Array, ranks: int, axis: int = 1) -> jax.Array:
    """The inverse of `to_zigzag`."""
    return _reorder(x, ranks, axis, inverse=True)


def _reorder(x: jax.Array, ranks: int, axis: int, *, inverse: bool) -> jax.Array:
    """Reorders an array by whole chunks."""
    length = x.shape[axis]
    chunk = chunk_size(length, ranks)
    chunks = zigzag_order(length, ranks)[::chunk] // chunk
    order = np.argsort(chunks) if inverse else chunks
    split = x.reshape(*x.shape[:axis], length // chunk, chunk, *x.shape[axis + 1 :])
    return jnp.take(split, jnp.asarray(order), axis=axis, unique_indices=True, mode="clip").reshape(x.shape)


def split_zigzag(x: jax.Array, axes: tuple[str, ...], inner: tuple[str, ...] = ()) -> jax.Array:
    """This rank's positions of `[r, s, ...]`, an array that is the same on all ranks.

    Args:
        x: All positions.
        axes: Mesh axes of the ranks.
        inner: Mesh axes over which each rank's positions are divided further, contiguously.

    Raises:
        ValueError: The ranks do not divide the positions.
    """
    return split_sequence(to_zigzag(x, rank_count(axes)), (*axes, *inner), axis=1)


def gather_zigzag(x: jax.Array, axes: tuple[str, ...], inner: tuple[str, ...] = ()) -> jax.Array:
    """All positions of `[r, q, ...]`, the same on all ranks; the inverse of `split_zigzag`."""
    return from_zigzag(gather_sequence(x, (*axes, *inner), axis=1), rank_count(axes))


def place_on_ranks(places: jax.Array, length: int, axes: tuple[str, ...]) -> tuple[jax.Array, jax.Array]:
    """For some places of a row, whether this rank has the position there, and its index on the rank if so.

    Args:
        places: Places in the row, of any shape.
        length: Positions of a row.
        axes: Mesh axes of the ranks.
    """
    ranks = rank_count(axes)
    local = length // ranks
    slots = jnp.asarray(np.argsort(zigzag_order(length, ranks)).astype(np.int32))[places]
    return slots // local == lax.axis_index(axes), slots % local
