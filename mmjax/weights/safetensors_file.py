"""Reading and writing a safetensors file: 8 bytes with the length of a JSON header, the header, and the tensors.

This is not left to the `safetensors` package: its NumPy side (0.8.0) does not read float8, and its writer needs all
tensors of a file at once, which an export that streams them never has. `folder.py` reads and writes by it.
"""

import dataclasses
import json
import math
import os
import pathlib
from collections.abc import Iterable, Mapping

import ml_dtypes
import numpy as np

from configs.common.errors import UserError
from configs.common.strict_json import parse_json

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
"""Types by the names that the format gives them."""

OTHER_DTYPES = ("F4", "F6_E2M3", "F6_E3M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "C64")
"""Types of the format that NumPy does not have: tensors of them are in files, but are not read."""

_SHOWN = 5  # names of tensors in a message

LENGTH_BYTES = 8
MAX_HEADER_BYTES = 100_000_000  # the format's own limit
COPY_STRIP = 128  # columns that are copied at once
METADATA = {"format": "pt"}  # transformers refuses files without it


@dataclasses.dataclass(frozen=True)
class TensorHeader:
    """The entry of a tensor in the header of a file.

    Attributes:
        dtype: The format's name of the type; a key of DTYPES if the type is known here.
        shape: Shape of the array, which is in C order.
        start: Offset of its first byte in the file; 0 for a tensor that is yet to be written.
    """

    dtype: str
    shape: tuple[int, ...]
    start: int = 0

    @property
    def size(self) -> int:
        """Size in bytes."""
        return math.prod(self.shape) * DTYPES[self.dtype].itemsize


def read_header(path: pathlib.Path) -> dict[str, TensorHeader]:
    """Reads the headers of a file's tensors, by name, and no tensor.

    Raises:
        UserError: The file is truncated, is not a safetensors file, or its tensors overlap, leave holes between them,
            or end before the file does. The `safetensors` package refuses the same files.
    """
    file_size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(LENGTH_BYTES), "little")
        if file_size < LENGTH_BYTES or length > MAX_HEADER_BYTES:
            raise UserError(f"{path} is not a safetensors file: it does not begin with the length of a header")
        data_start = LENGTH_BYTES + length
        if file_size < data_start:
            raise UserError(
                f"{path} is truncated: it has {file_size} bytes, and its header alone ends at {data_start}; "
                "copy it again"
            )
        try:
            entries = parse_json(file.read(length), "it")
            _check_metadata(entries.pop("__metadata__", None))
            offsets = {name: _whole_numbers(entry["data_offsets"], count=2) for name, entry in entries.items()}
            headers = {
                name: TensorHeader(
                    _dtype(entry["dtype"]), _whole_numbers(entry["shape"]), data_start + offsets[name][0]
                )
                for name, entry in entries.items()
            }
            data_end = max((data_start + end for _, end in offsets.values()), default=data_start)
        except (UserError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(f"{path} is not a safetensors file: its header can't be read ({error!r})") from error
    if file_size < data_end:
        missing = sorted(name for name, (_, end) in offsets.items() if data_start + end > file_size)
        raise UserError(
            f"{path} is truncated: it has {file_size} of {data_end} bytes, so that {', '.join(missing[:_SHOWN])} "
            f"{'and others ' if missing[_SHOWN:] else ''}are missing; copy it again"
        )
    _check_coverage(path, offsets, file_size - data_start)
    for name, header in headers.items():
        size = offsets[name][1] - offsets[name][0]
        if header.dtype in DTYPES and size != header.size:
            raise UserError(f"{path}: {name} of shape {list(header.shape)} and {header.dtype} can't be {size} bytes")
    return headers


def _check_coverage(path: pathlib.Path, offsets: Mapping[str, tuple[int, ...]], size: int) -> None:
    """Raises UserError unless the tensors cover all bytes of the file once, as the format requires."""
    covered, before = 0, ""
    for name, (start, end) in sorted(offsets.items(), key=lambda entry: entry[1]):
        if end < start:
            raise UserError(f"{path} is damaged: {name} ends at byte {end}, before it starts at {start}")
        if start != covered:
            problem = f"overlaps {before}" if start < covered else "leaves a hole before it"
            raise UserError(
                f"{path} is damaged: {name} {problem}: it starts at byte {start} of the tensors, and those before it "
                f"end at {covered}"
            )
        covered, before = end, name
    if covered != size:
        raise UserError(f"{path} is damaged: {size - covered} bytes follow the last tensor; copy it again")


def _check_metadata(metadata: object) -> None:
    if metadata is not None and not (
        isinstance(metadata, dict) and all(isinstance(value, str) for value in metadata.values())
    ):
        raise TypeError(f"__metadata__ is {metadata!r:.60} instead of texts by name")


def _whole_numbers(values: object, count: int | None = None) -> tuple[int, ...]:
    if not isinstance(values, list) or (count is not None and len(values) != count):
        raise TypeError(f"{values!r:.60} instead of a list of numbers")
    if not all(type(value) is int and value >= 0 for value in values):
        raise ValueError(f"{values!r:.60} instead of whole numbers, 0 or more")
    return tuple(values)


def _dtype(value: object) -> str:
    if value not in (*DTYPES, *OTHER_DTYPES):
        raise ValueError(f"{value!r:.60} instead of a type such as F32")
    return str(value)


def read_tensor(path: pathlib.Path, header: TensorHeader, part: tuple[slice, ...] | None = None) -> np.ndarray:
    """Maps a tensor, or a slice of it, into memory: a page of the file is read when it is accessed."""
    dtype = DTYPES[header.dtype]
    if not header.size:
        return np.empty(header.shape, dtype)
    mapped = np.memmap(path, np.uint8, "r", header.start, (header.size,)).view(np.ndarray)
    array = mapped.view(dtype).reshape(header.shape)
    return array if part is None else array[part]


def contiguous_copy(array: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Copies an array to C order and the given type.

    A transposed array is copied in strips that fit into the caches, which takes a third of the time.
    """
    if array.flags.c_contiguous or array.ndim < 2:
        return np.array(array, dtype, order="C")
    copy = np.empty(array.shape, dtype)
    for first in range(0, array.shape[-1], COPY_STRIP):
        strip = (..., slice(first, first + COPY_STRIP))
        copy[strip] = array[strip]
    return copy


def write_safetensors(
    path: pathlib.Path, headers: Mapping[str, TensorHeader], arrays: Iterable[tuple[str, np.ndarray]]
) -> None:
    """Writes a file, one tensor at a time.

    Args:
        path: The file; an existing one is replaced only when the new one is whole.
        headers: Type and shape of every tensor, in the order of `arrays`.
        arrays: Names and values, consumed one at a time.

    Raises:
        ValueError: An array has another name, shape or type than its header.
    """
    entries: dict[str, object] = {"__metadata__": METADATA}
    end = 0
    for name, header in headers.items():
        entries[name] = {"dtype": header.dtype, "shape": header.shape, "data_offsets": [end, end + header.size]}
        end += header.size
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the format aligns the first tensor
    unfinished = path.with_name(path.name + ".unfinished")
    try:
        with unfinished.open("wb") as file:
            file.write(len(text).to_bytes(LENGTH_BYTES, "little"))
            file.write(text)
            for (name, header), (array_name, array) in zip(headers.items(), arrays, strict=True):
                if (array_name, array.shape, array.dtype) != (name, header.shape, DTYPES[header.dtype]):
                    raise ValueError(
                        f"{array_name} {array.dtype}{array.shape} was given where {name}, {header} was declared"
                    )
                contiguous = array if array.flags.c_contiguous else contiguous_copy(array, array.dtype)
                file.write(contiguous.reshape(-1).view(np.uint8).data)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
