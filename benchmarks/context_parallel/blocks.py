"""Blocks of attention that context-parallel ranks compute on packed rows like LLaVA's, by how rows are cut."""

from collections.abc import Callable, Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Int

from benchmarks.balancing.grouping import llava
from pallas_kernels.packed_attention.block_pairs import blocks_overlap, default_block_size
from pallas_kernels.packed_attention.token_ids import TokenIds
from pallas_kernels.packed_attention.zigzag import zigzag_order

TOKENS, RANKS, ROWS = 8192, 4, 64
GOAL = 1.15

Places = Int[np.ndarray, "ranks q"]
"""Places in the row of the positions of every rank."""


def packed_rows(count: int, length: int) -> Int[np.ndarray, "n s"]:
    """Segments of rows, filled with samples in the order in which they are drawn."""
    segments = np.zeros((count, length), np.int32)
    row, filled, number = 0, 0, 0
    for tokens in llava()[:, 1].astype(int):
        if filled + tokens > length:
            row, filled, number = row + 1, 0, 0
        if row == count:
            break
        number += 1
        segments[row, filled : filled + tokens] = number
        filled += tokens
    return segments


def contiguous(length: int, ranks: int) -> Places:
    """Splits the row into one contiguous shard for each rank."""
    return np.arange(length).reshape(ranks, -1)


def two_chunks(length: int, ranks: int) -> Places:
    """Two chunks for each rank: the first and the last for the first rank, and so on inwards."""
    chunks = np.arange(length).reshape(2 * ranks, -1)
    return np.concatenate([chunks[:ranks], chunks[: ranks - 1 : -1]], axis=1)


def small_chunks(length: int, ranks: int) -> Places:
    """The places that the trainer gives to ranks: the zigzag order of small chunks."""
    return zigzag_order(length, ranks).reshape(ranks, -1)


CUTS: dict[str, Callable[[int, int], Places]] = {
    "contiguous parts": contiguous,
    "two chunks a rank": two_chunks,
    "small chunks": small_chunks,
}


def blocks_of_ranks(segments: Int[np.ndarray, "n s"], places: Places) -> Int[np.ndarray, "n ranks steps"]:
    """Pairs of blocks that each rank computes at each step of a ring, of causal rows."""
    ranks, local = places.shape
    block = default_block_size(local)
    tokens = [
        TokenIds(
            jnp.asarray(segments[:, positions]),
            order=jnp.broadcast_to(jnp.asarray(positions, jnp.int32), (len(segments), local)),
        )
        for positions in places
    ]
    counts = [
        [
            np.sum(blocks_overlap(tokens[rank], tokens[(rank - step) % ranks], None, (block, block)), axis=(1, 2))
            for step in range(ranks)
        ]
        for rank in range(ranks)
    ]
    return np.moveaxis(np.array(counts), -1, 0)


def measure() -> Iterator[dict[str, Any]]:
    """Blocks of the rank with most, and of the slowest rank at each step, over an equal share of the blocks needed."""
    segments = packed_rows(ROWS, TOKENS)
    needed = blocks_of_ranks(segments, contiguous(TOKENS, RANKS)).sum(axis=(1, 2))
    for name, cut in CUTS.items():
        block_counts = blocks_of_ranks(segments, cut(TOKENS, RANKS))
        most = (block_counts.sum(axis=2).max(axis=1) * RANKS / needed).mean()
        stepwise = (block_counts.max(axis=1).sum(axis=1) * RANKS / needed).mean()
        goal = GOAL if name == "small chunks" else None
        for case, value in (("of the rank with most", most), ("where every step waits for the slowest", stepwise)):
            yield {
                "name": f"{name}: blocks {case}, over an equal share",
                "value": float(value),
                "goal": goal,
                "met": None if goal is None else bool(value <= goal),
                "note": f"cp {RANKS}, rows of {TOKENS} tokens",
            }
