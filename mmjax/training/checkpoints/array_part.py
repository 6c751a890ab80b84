"""The shards of an array that one process writes to a checkpoint.

It is made of the shards on this process's devices (`arrays.py`) and written by `array_files.py`.
"""

import dataclasses
from typing import Any

import jax
import numpy as np

Index = tuple[slice, ...]
"""Place of a shard in its array."""


@dataclasses.dataclass(frozen=True)
class ArrayPart:
    """The shards of an array that this process writes; of replicated shards, one process alone writes its copy.

    Attributes:
        shape: Shape of the whole array.
        dtype: Type of its values.
        shard_shape: Shape of each of its shards.
        shards: The shards that this process writes, on devices or on the host, by their place in the array.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    shard_shape: tuple[int, ...]
    shards: tuple[tuple[Index, Any], ...]

    @classmethod
    def of(cls, array: jax.Array) -> "ArrayPart":
        """Takes the shards of an array that this process writes, and starts to copy them to the host."""
        written = [shard for shard in array.addressable_shards if shard.replica_id == 0]
        for shard in written:
            shard.data.copy_to_host_async()
        shards = tuple((shard.index, shard.data) for shard in written)
        return cls(array.shape, np.dtype(array.dtype), array.sharding.shard_shape(array.shape), shards)

    @classmethod
    def absent(cls, abstract: jax.ShapeDtypeStruct) -> "ArrayPart":
        """Returns a part without shards, for a process that has no device of the array."""
        assert abstract.sharding is not None
        return cls(abstract.shape, np.dtype(abstract.dtype), abstract.sharding.shard_shape(abstract.shape), ())

    def on_host(self) -> "ArrayPart":
        """Returns the same part with its values on the host; waits for the copy."""
        return dataclasses.replace(self, shards=tuple((index, np.asarray(data)) for index, data in self.shards))
