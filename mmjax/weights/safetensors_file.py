"""One safetensors file: 8 bytes with the length of a JSON header, the header, and the tensors one after the other.

Read and written here and not by the `safetensors` package: its NumPy side (0.8.0) reads no float8, and its writer wants
all tensors of a file at once, which a checkpoint that is streamed never has.
"""

import dataclasses
import json
import math
import os
import pathlib
from collections.abc import Iterable, Mapping

import ml_dtypes
import numpy as np

from configs.errors import UserError

DTYPES: dict[str, np.dtype] = {
    "F64": np.dtype(np.float64),
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
    "I64": np.dtype(np.int64),
    "I32": np.dtype(np.int32),
    "I16": np.dtype(np.int16),
    "I8": np.dtype(np.int8),
    "U64": np.dtype(np.uint64),
    "U32": np.dtype(np.uint32),
    "U16": np.dtype(np.uint16),
    "U8": np.dtype(np.uint8),
    "BOOL": np.dtype(np.bool_),
}
"""The format's names of types."""

LENGTH_BYTES = 8
LONGEST_HEADER = 100_000_000  # the format's own bound
COPY_STRIP = 128
METADATA = {"format": "pt"}  # transformers refuses files that don't say it


@dataclasses.dataclass(frozen=True)
class TensorHeader:
    """What a header says of a tensor.

    Attributes:
        dtype: The format's name of its type, a key of DTYPES if it is known here.
        shape: Of the array, in C order.
        start: Where its bytes begin in the file; 0 for a tensor that is yet to be written.
    """

    dtype: str
    shape: tuple[int, ...]
    start: int = 0

    @property
    def size(self) -> int:
        """Bytes."""
        return math.prod(self.shape) * DTYPES[self.dtype].itemsize


def read_header(path: pathlib.Path) -> dict[str, TensorHeader]:
    """The tensors of a file by name; nothing of them is read.

    Raises:
        UserError: The file is cut off, or is no safetensors file.
    """
    whole = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(LENGTH_BYTES), "little")
        if whole < LENGTH_BYTES or length > LONGEST_HEADER:
            raise UserError(f"{path} is no safetensors file: it does not begin with the length of a header")
        data = LENGTH_BYTES + length
        if whole < data:
            raise UserError(
                f"{path} is cut off: it has {whole} bytes, and its header alone ends at {data}; copy it anew"
            )
        try:
            header = json.loads(file.read(length))
            header.pop("__metadata__", None)
            offsets = {name: of["data_offsets"] for name, of in header.items()}
            found = {
                name: TensorHeader(of["dtype"], tuple(of["shape"]), data + offsets[name][0])
                for name, of in header.items()
            }
            end = max((data + last for _, last in offsets.values()), default=data)
        except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
            raise UserError(f"{path} is no safetensors file: its header can't be read ({error!r})") from error
    if whole < end:
        lost = sorted(name for name, (_, last) in offsets.items() if data + last > whole)
        raise UserError(
            f"{path} is cut off: it has {whole} of {end} bytes, so that {', '.join(lost)} lack; copy it anew"
        )
    for name, tensor in found.items():
        held = offsets[name][1] - offsets[name][0]
        if tensor.dtype in DTYPES and held != tensor.size:
            raise UserError(f"{path}: {name} of shape {list(tensor.shape)} and {tensor.dtype} can't be {held} bytes")
    return found


def read_tensor(path: pathlib.Path, tensor: TensorHeader, part: tuple[slice, ...] | None = None) -> np.ndarray:
    """A tensor, or a part of it, mapped into memory: only the pages that are looked at are read, when they are."""
    dtype = DTYPES[tensor.dtype]
    if not tensor.size:
        return np.empty(tensor.shape, dtype)
    mapped = np.memmap(path, np.uint8, "r", tensor.start, (tensor.size,)).view(np.ndarray)
    array = mapped.view(dtype).reshape(tensor.shape)
    return array if part is None else array[part]


def contiguous_copy(array: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """A copy in C order and another type. A turned array is copied in strips that fit caches: a third of the time."""
    if array.flags.c_contiguous or array.ndim < 2:
        return np.array(array, dtype, order="C")
    copy = np.empty(array.shape, dtype)
    for first in range(0, array.shape[-1], COPY_STRIP):
        strip = (..., slice(first, first + COPY_STRIP))
        copy[strip] = array[strip]
    return copy


def write_safetensors(
    path: pathlib.Path, declared: Mapping[str, TensorHeader], arrays: Iterable[tuple[str, np.ndarray]]
) -> None:
    """Writes the tensors of a file one at a time.

    Args:
        path: Where; what stands there is replaced only when the file is whole.
        declared: Type and shape of every tensor, in the order of `arrays`.
        arrays: Their names and values, taken one after the other.
    """
    header: dict[str, object] = {"__metadata__": METADATA}
    end = 0
    for name, tensor in declared.items():
        header[name] = {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [end, end + tensor.size]}
        end += tensor.size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the format's alignment of the first tensor
    unfinished = path.with_name(path.name + ".unfinished")
    try:
        with unfinished.open("wb") as file:
            file.write(len(text).to_bytes(LENGTH_BYTES, "little"))
            file.write(text)
            for (name, tensor), (given, array) in zip(declared.items(), arrays, strict=True):
                if (given, array.shape, array.dtype) != (name, tensor.shape, DTYPES[tensor.dtype]):
                    raise ValueError(
                        f"{given} {array.dtype}{array.shape} was given where {name}, {tensor} was declared"
                    )
                whole = array if array.flags.c_contiguous else contiguous_copy(array, array.dtype)
                file.write(whole.reshape(-1).view(np.uint8))
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
