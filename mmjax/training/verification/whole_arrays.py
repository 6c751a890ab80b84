"""Arrays whose shards lie in several processes, gathered as whole NumPy arrays in every process.

`layout_results.py` and the reference fetch losses and gradients by it.
"""

import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils

from configs.common.errors import UserError
from sharding.runtime.coordination import wait_for_processes

Name = tuple[str, ...]
"""Name of an array; of trees, the path of a leaf."""

Arrays = Mapping[Name, jax.Array | np.ndarray]

LARGEST_MESSAGE = 2**31 - 1
"""Largest number of bytes of a message: every process gets all messages, and their lengths are int32."""

_HEADER_LENGTH = 8


@dataclasses.dataclass(frozen=True, eq=False)
class ArrayBox:
    """A box of an array.

    Attributes:
        name: Name of the array.
        shape: Shape of the whole array.
        starts: First index of the box in every dimension.
        values: Values of the box.
    """

    name: Name
    shape: tuple[int, ...]
    starts: tuple[int, ...]
    values: np.ndarray


def gather_whole_arrays(arrays: Arrays) -> dict[Name, np.ndarray]:
    """Gathers every array that some process has, whole; all processes call this together.

    Values that no process has, and values that differ between devices that should hold the same, become NaN (the
    smallest number of an integer type). Booleans become int8, which has such a number.

    Args:
        arrays: The arrays of this process. A NumPy array is whole; of an array on devices, the shards that are in this
            process are taken.
    """
    parts = [part for name, array in arrays.items() for part in _local_parts(name, array)]
    if jax.process_count() == 1:
        return join_parts(parts)
    return join_parts(part for message in _gather_messages(encode_parts(parts)) for part in decode_parts(message))


def share_from_first_process(arrays: Arrays) -> dict[Name, np.ndarray]:
    """Sends the arrays of process 0 to every process; all call this together."""
    return gather_whole_arrays(arrays if jax.process_index() == 0 else {})


def _local_parts(name: Name, array: jax.Array | np.ndarray) -> Iterator[ArrayBox]:
    if not isinstance(array, jax.Array):
        yield ArrayBox(name, np.shape(array), (0,) * np.ndim(array), _with_invalid(np.asarray(array)))
        return
    for shard in array.addressable_shards:
        starts = tuple(part.indices(extent)[0] for part, extent in zip(shard.index, array.shape, strict=True))
        yield ArrayBox(name, array.shape, starts, _with_invalid(np.asarray(shard.data)))


def join_parts(parts: Iterable[ArrayBox]) -> dict[Name, np.ndarray]:
    """Joins boxes to arrays. Where boxes overlap and differ, and where there is none, values are invalid."""
    whole: dict[Name, np.ndarray] = {}
    present: dict[Name, np.ndarray] = {}
    for part in parts:
        if part.name not in whole:
            whole[part.name] = np.zeros(part.shape, part.values.dtype)
            present[part.name] = np.zeros(part.shape, bool)
        box = tuple(slice(start, start + size) for start, size in zip(part.starts, part.values.shape, strict=True))
        before, known = whole[part.name][box], present[part.name][box]
        same = (before == part.values) | ((before != before) & (part.values != part.values))
        whole[part.name][box] = np.where(same | ~known, part.values, _invalid(part.values.dtype))
        present[part.name][box] = True
    return {name: np.where(present[name], array, _invalid(array.dtype)) for name, array in whole.items()}


def _with_invalid(values: np.ndarray) -> np.ndarray:
    """Casts values to a type that has an invalid value."""
    return values.astype(np.int8) if values.dtype == bool else values


def _invalid(dtype: np.dtype) -> np.ndarray:
    return np.array(np.nan if jnp.issubdtype(dtype, jnp.floating) else np.iinfo(dtype).min, dtype)


# ---------------------------------------------------------------------- messages between processes


def encode_parts(parts: Iterable[ArrayBox]) -> bytes:
    """Serialises boxes to one message: the length of a JSON header, the header, and all values."""
    parts = list(parts)
    header = [[part.name, part.shape, part.starts, part.values.shape, part.values.dtype.name] for part in parts]
    encoded = json.dumps(header).encode()
    values = (np.ascontiguousarray(part.values).tobytes() for part in parts)
    return b"".join([len(encoded).to_bytes(_HEADER_LENGTH, "little"), encoded, *values])


def decode_parts(message: bytes) -> Iterator[ArrayBox]:
    """The inverse of `encode_parts`."""
    offset = _HEADER_LENGTH + int.from_bytes(message[:_HEADER_LENGTH], "little")
    for name, shape, starts, box_shape, dtype in json.loads(message[_HEADER_LENGTH:offset]):
        count = int(np.prod(box_shape, dtype=int))
        values = np.frombuffer(message, jnp.dtype(dtype), count, offset).reshape(box_shape)
        offset += values.nbytes
        yield ArrayBox(tuple(name), tuple(shape), tuple(starts), values)


def check_message_size(size: int) -> None:
    """Raises UserError if `size` bytes are too many for the message of a process."""
    if size > LARGEST_MESSAGE:
        raise UserError(
            f"verification by {jax.process_count()} processes sends parameters, gradients and optimizer state in one "
            f"message of at most 2 GiB, and this model's have {size / 2**30:.1f} GiB; verify a smaller copy of it with "
            "--shrink, or in one process"
        )


def _gather_messages(message: bytes) -> list[bytes]:
    """Gathers the messages of all processes, in their order."""
    wait_for_processes("the gathering of arrays")
    parts = np.array(divmod(len(message), 2**30), np.int32)  # an int32 cannot hold the lengths that are refused
    quotients, remainders = np.asarray(multihost_utils.process_allgather(parts)).astype(np.int64).T
    lengths = quotients * 2**30 + remainders
    check_message_size(int(lengths.max()))  # in all processes alike
    # A program is compiled for every size, so there are few of them.
    padded = np.zeros(1 << int(lengths.max() - 1).bit_length(), np.uint8)
    padded[: len(message)] = np.frombuffer(message, np.uint8)
    gathered = np.asarray(multihost_utils.process_allgather(padded))
    return [row[:length].tobytes() for row, length in zip(gathered, lengths, strict=True)]
