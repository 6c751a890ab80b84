"""Reaching a peer's memory from a Hopper kernel: another GPU's, or another virtual rank's on the same GPU.

The kernels of `mosaic.py` know peers only through these. `Remote` is the real thing. `Loopback` makes n ranks of the
blocks of one GPU, their arrays the slices of one array, so that a single GPU can show whether the order holds.
"""

import dataclasses
import math
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

BLOCKS = "cluster_grid"  # the name under which jax's Hopper matmul spreads its tiles over blocks
VIRTUAL = "virtual_rank"


@dataclasses.dataclass(frozen=True)
class RemotePeers:
    """The ranks of some axes of the device mesh; ranks on other axes are never reached.

    Attributes:
        axes: Names of mesh axes, the first the slowest.
        sizes: Their sizes.
    """

    axes: tuple[str, ...]
    sizes: tuple[int, ...]

    @property
    def ranks(self) -> int:
        return math.prod(self.sizes)

    def grid(self, multiprocessors: int) -> tuple[tuple[int, ...], tuple[str, ...]]:
        """Sizes and names of the grid: a block on every multiprocessor, never more, or the last would never start."""
        return (multiprocessors,), (BLOCKS,)

    def rank(self) -> Any:
        rank = jnp.int32(0)
        for axis, size in zip(self.axes, self.sizes, strict=True):
            rank = rank * size + lax.axis_index(axis)
        return rank

    def counters(self) -> Any:
        """This rank's counters, one a slot, zero at the start of every call."""
        return pl.get_global(plgpu.SemaphoreType.REGULAR((self.ranks,)))

    def mine(self, ref: Any) -> Any:
        return ref

    def peer(self, ref: Any, rank: Any) -> Any:
        return plgpu.remote_ref(ref, self._device(rank))

    def signal(self, counters: Any, rank: Any, slot: Any) -> None:
        pl.semaphore_signal(counters.at[slot], device_id=self._device(rank))

    def _device(self, rank: Any) -> dict[str, Any]:
        place = {}
        for axis, size in zip(reversed(self.axes), reversed(self.sizes), strict=True):
            rank, place[axis] = lax.div(rank, jnp.int32(size)), lax.rem(rank, jnp.int32(size))
        return place


@dataclasses.dataclass(frozen=True)
class LoopbackPeers:
    """Virtual ranks on one GPU: every array has them as its leading dimension."""

    ranks: int

    def grid(self, multiprocessors: int) -> tuple[tuple[int, ...], tuple[str, ...]]:
        """Sizes and names of the grid: the multiprocessors shared out among the ranks.

        Raises:
            ValueError: There are fewer of them than ranks.
        """
        if multiprocessors < self.ranks:
            raise ValueError(f"{self.ranks} virtual ranks need as many multiprocessors; there are {multiprocessors}")
        return (self.ranks, multiprocessors // self.ranks), (VIRTUAL, BLOCKS)

    def rank(self) -> Any:
        return lax.axis_index(VIRTUAL)

    def counters(self) -> Any:
        return pl.get_global(plgpu.SemaphoreType.REGULAR((self.ranks, self.ranks)))

    def mine(self, ref: Any) -> Any:
        return ref.at[self.rank()]

    def peer(self, ref: Any, rank: Any) -> Any:
        return ref.at[rank]

    def signal(self, counters: Any, rank: Any, slot: Any) -> None:
        pl.semaphore_signal(counters.at[rank, slot])
