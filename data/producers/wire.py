"""Global batches as Arrow data: what a producer sends and a trainer reads. Data alone, never a pickle.

A stream has one column of bytes; every tensor is a row, or several if it is larger than a message may be. What the
tensors are, and all else of the batch, stands as JSON in the schema's metadata under `mmjax`.
"""

import itertools
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from data.errors import DataError
from data.packing.global_batch import GlobalBatch
from data.packing.refusals import Refusal

WIRE_VERSION = 1
METADATA_KEY = b"mmjax"
MAX_PART_BYTES = 2**30
"""Bytes of a row: a message of Flight must stay below 2 GiB."""

_COLUMN = pa.field("bytes", pa.large_binary(), nullable=False)
_NUMBERS = "biuf"  # kinds of dtypes: no objects, no text


def encode_batch(batch: GlobalBatch, largest_part: int = MAX_PART_BYTES) -> pa.RecordBatchReader:
    """A batch as a stream that refers to its tensors' memory; contiguous ones are not copied.

    Args:
        batch: Of tensors of numbers or bools.
        largest_part: Most bytes a row of the stream may have.
    """
    tensors = [("", "sample_ids", batch.sample_ids)]
    tensors += [(module, field, array) for module, fields in batch.arrays.items() for field, array in fields.items()]
    header = {
        "version": WIRE_VERSION,
        "tensors": [[module, field, array.dtype.str, list(array.shape)] for module, field, array in tensors],
        "modules": list(batch.arrays),
        "counts": {name: [int(real), int(capacity)] for name, (real, capacity) in batch.counts.items()},
        "targets": int(batch.targets),
        "state": dict(batch.state),
        "refused": [list(refusal) for refusal in batch.refused],
    }
    schema = pa.schema([_COLUMN], metadata={METADATA_KEY: json.dumps(header).encode()})
    parts = (part for *_, array in tensors for part in _parts(array, largest_part))
    return pa.RecordBatchReader.from_batches(schema, (_row(part, schema) for part in parts))


def decode_batch(schema: pa.Schema, rows: Iterable[pa.RecordBatch]) -> GlobalBatch:
    """The batch of a stream; its tensors lie, read-only, in the memory that the stream came in.

    Raises:
        DataError: Not such a stream, or not all of it.
    """
    try:
        header = json.loads((schema.metadata or {})[METADATA_KEY])
        if header["version"] != WIRE_VERSION:
            raise DataError(f"a batch of wire version {header['version']}; this is version {WIRE_VERSION}")
        if schema.names != [_COLUMN.name] or schema.types != [_COLUMN.type]:
            raise DataError(f"a batch in columns {schema.names} of {schema.types}")
        parts = _received(rows)
        arrays: dict[str, dict[str, np.ndarray]] = {"": {}} | {module: {} for module in header["modules"]}
        for module, field, dtype, shape in header["tensors"]:
            arrays[module][field] = _tensor(parts, np.dtype(dtype), tuple(shape))
        if next(parts, None) is not None:
            raise DataError("a batch with more tensors than its header names")
        return GlobalBatch(sample_ids=arrays.pop("")["sample_ids"], arrays=arrays, **_plain_fields(header))
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError, pa.ArrowInvalid) as error:
        raise DataError(f"this is no batch: {type(error).__name__}: {error}") from error


def _plain_fields(header: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "counts": {name: (int(real), int(capacity)) for name, (real, capacity) in header["counts"].items()},
        "targets": int(header["targets"]),
        "state": dict(header["state"]),
        "refused": tuple(Refusal(*fields) for fields in header["refused"]),
    }


def _parts(array: np.ndarray, largest: int) -> Iterator[np.ndarray]:
    """The bytes of an array, in order; one part, which is empty, of an empty one."""
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    for start in range(0, max(len(flat), 1), largest):
        yield flat[start : start + largest]


def _row(part: np.ndarray, schema: pa.Schema) -> pa.RecordBatch:
    offsets = pa.py_buffer(np.array([0, len(part)], np.int64))
    column = pa.Array.from_buffers(pa.large_binary(), 1, [None, offsets, pa.py_buffer(part)])
    return pa.RecordBatch.from_arrays([column], schema=schema)


def _received(rows: Iterable[pa.RecordBatch]) -> Iterator[np.ndarray]:
    """The bytes of every row, where they lie; NumPy keeps a stream that lies about its lengths within its memory."""
    for row in rows:
        column = row.column(0)
        _, offsets, data = column.buffers()
        ends = np.frombuffer(offsets, np.int64, len(column) + 1, 8 * column.offset)
        whole = np.frombuffer(data, np.uint8)
        yield from (whole[start:end] for start, end in itertools.pairwise(ends))


def _tensor(parts: Iterator[np.ndarray], dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    if dtype.kind not in _NUMBERS or any(side < 0 for side in shape):
        raise DataError(f"a batch with a tensor of {dtype}{list(shape)}")
    missing = dtype.itemsize * int(np.prod(shape, dtype=object))
    got: list[np.ndarray] = []
    while missing > 0 or not got:
        part = next(parts, None)
        if part is None or part.size > missing or (part.size == 0 and missing):
            raise DataError("a batch whose tensors are not as long as its header says")
        got.append(part)
        missing -= part.size
    whole = got[0] if len(got) == 1 else np.concatenate(got)
    # What Arrow receives may begin anywhere; numbers at odd addresses are copied once, here.
    return np.require(whole.view(dtype).reshape(shape), requirements="A")
