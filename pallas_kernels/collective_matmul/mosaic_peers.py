"""Access to a peer's memory from a Hopper kernel: of another GPU, or of another virtual rank on the same GPU.

The kernels address peers only through these classes. `RemotePeers` are the ranks of a device mesh. `LoopbackPeers`
divides the blocks of one GPU among n virtual ranks, whose arrays are slices of one array, so that the order of the
protocol can be tested on a single GPU.
"""

import dataclasses
import math
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

BLOCKS = "cluster_grid"  # the grid axis over which jax's Hopper matmul distributes its tiles
VIRTUAL = "virtual_rank"


@dataclasses.dataclass(frozen=True)
class RemotePeers:
    """The ranks along some axes of the device mesh; ranks along other axes are never addressed.

    Attributes:
        axes: Names of mesh axes, the slowest first.
        sizes: Their sizes.
    """

    axes: tuple[str, ...]
    sizes: tuple[int, ...]

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return math.prod(self.sizes)

    def grid(self, multiprocessors: int) -> tuple[tuple[int, ...], tuple[str, ...]]:
        """Sizes and names of the grid: one block on every multiprocessor, since further blocks would never start."""
        return (multiprocessors,), (BLOCKS,)

    def rank(self) -> Any:
        """This rank, traced."""
        rank = jnp.int32(0)
        for axis, size in zip(self.axes, self.sizes, strict=True):
            rank = rank * size + lax.axis_index(axis)
        return rank

    def counters(self) -> Any:
        """This rank's counters, one for each slot, zero at the start of every call."""
        return pl.get_global(plgpu.SemaphoreType.REGULAR((self.ranks,)))

    def mine(self, ref: Any) -> Any:
        """This rank's array of a reference."""
        return ref

    def peer(self, ref: Any, rank: Any) -> Any:
        """Another rank's array of a reference."""
        return plgpu.remote_ref(ref, self._coordinates(rank))  # pyright: ignore[reportArgumentType]  # takes coordinates

    def signal(self, counters: Any, rank: Any, slot: Any) -> None:
        """Increments another rank's counter of a slot."""
        pl.semaphore_signal(counters.at[slot], device_id=self._coordinates(rank))

    def _coordinates(self, rank: Any) -> dict[str, Any]:
        coordinates = {}
        for axis, size in zip(reversed(self.axes), reversed(self.sizes), strict=True):
            rank, coordinates[axis] = lax.div(rank, jnp.int32(size)), lax.rem(rank, jnp.int32(size))
        return coordinates


@dataclasses.dataclass(frozen=True)
class LoopbackPeers:
    """Virtual ranks on one GPU: every array has a leading dimension of ranks."""

    ranks: int

    def grid(self, multiprocessors: int) -> tuple[tuple[int, ...], tuple[str, ...]]:
        """Sizes and names of the grid: the multiprocessors divided among the ranks.

        Raises:
            ValueError: There are fewer multiprocessors than ranks.
        """
        if multiprocessors < self.ranks:
            raise ValueError(f"{self.ranks} virtual ranks need as many multiprocessors; there are {multiprocessors}")
        return (self.ranks, multiprocessors // self.ranks), (VIRTUAL, BLOCKS)

    def rank(self) -> Any:
        """This virtual rank, traced."""
        return lax.axis_index(VIRTUAL)

    def counters(self) -> Any:
        """The counters of all virtual ranks, one for each slot, zero at the start of every call."""
        return pl.get_global(plgpu.SemaphoreType.REGULAR((self.ranks, self.ranks)))

    def mine(self, ref: Any) -> Any:
        """This rank's slice of a reference."""
        return ref.at[self.rank()]

    def peer(self, ref: Any, rank: Any) -> Any:
        """Another rank's slice of a reference."""
        return ref.at[rank]

    def signal(self, counters: Any, rank: Any, slot: Any) -> None:
        """Increments another rank's counter of a slot."""
        pl.semaphore_signal(counters.at[rank, slot])
