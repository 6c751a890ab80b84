"""An array of a stage as one process hands it to orbax, whether it has shards of it or not."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np


class AbsentShard(NamedTuple):
    """Stands for a shard that this process does not have: a copy with a number above 0 is never written.

    Attributes:
        index: Its place in the array.
        replica_id: Number of the copy.
        data: Shape and dtype of the shards of the array.
    """

    index: tuple[slice, ...]
    replica_id: int
    data: jax.ShapeDtypeStruct


class ArrayPart(jax.Array):
    """The shards of an array that this process has, as orbax saves it when there are several processes.

    Orbax 0.12.8 refuses an array whose devices are all of one process, as those of a stage often are, and reads the
    shape of a shard from the first shard of every array in every process, also where a process has none. This is what
    it reads of an array, without these two limits: it takes no device memory, and nothing is computed or copied.

    Args:
        abstract: Shape, dtype and sharding of the whole array, the same in every process.
        array: The array, or None where this process has no device of its sharding.
    """

    def __init__(self, abstract: jax.ShapeDtypeStruct, array: jax.Array | None) -> None:
        assert abstract.sharding is not None
        self._abstract = abstract
        shape = abstract.sharding.shard_shape(abstract.shape)
        absent = AbsentShard(tuple(slice(0, size) for size in shape), 1, jax.ShapeDtypeStruct(shape, abstract.dtype))
        self._shards = [absent] if array is None else array.addressable_shards

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the whole array."""
        return self._abstract.shape

    @property
    def dtype(self) -> Any:
        """Dtype of its values."""
        return self._abstract.dtype

    @property
    def sharding(self) -> jax.sharding.Sharding:
        """Sharding of the whole array."""
        return self._abstract.sharding

    @property
    def addressable_shards(self) -> Sequence[Any]:
        """The shards of this process, or an `AbsentShard`."""
        return self._shards

    @property
    def is_fully_addressable(self) -> bool:
        """False: orbax refuses arrays of one process by this. It writes shards whose `replica_id` is 0, wherever."""
        return False

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of values of the whole array."""
        return math.prod(self.shape)

    @property
    def itemsize(self) -> int:
        """Bytes of a value."""
        return np.dtype(self.dtype).itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of the whole array."""
        return self.size * self.itemsize
