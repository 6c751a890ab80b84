"""The wire format: global batches as Arrow data, sent by producers and read by trainers. Plain data, never a pickle.

A stream has one column of bytes. Every tensor is one row of it, or several if it is larger than a message may be. The
names, dtypes and shapes of the tensors and the other fields of the batch are JSON in the schema's metadata, under
`mmjax`.
"""

import dataclasses
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from data.errors import DataError
from data.extras import missing_extra
from data.packing.dealt_phases import DealtPhases
from data.packing.global_batch import GlobalBatch
from data.packing.phases.needed_rows import NeededRows
from data.packing.rows.refusals import Refusal

try:
    import pyarrow as pa
except ImportError as error:
    raise missing_extra("the preprocessing service", "service", error) from error

WIRE_VERSION = 3
METADATA_KEY = b"mmjax"

MAX_PART_BYTES = 2**30
"""Bytes of a row: a message of Flight must stay below 2 GiB."""

_COLUMN = pa.field("bytes", pa.large_binary(), nullable=False)
_NUMBER_KINDS = "biuf"  # kinds of dtypes: no objects, no text


def encode_batch(batch: GlobalBatch, max_part_bytes: int = MAX_PART_BYTES) -> pa.RecordBatchReader:
    """A batch as a stream that refers to the memory of its tensors; contiguous ones are not copied.

    Args:
        batch: A batch of numbers and bools.
        max_part_bytes: Largest number of bytes of a row of the stream.
    """
    tensors = [("", "sample_ids", batch.sample_ids)]
    tensors += [(module, field, array) for module, fields in batch.arrays.items() for field, array in fields.items()]
    header = {
        "version": WIRE_VERSION,
        "tensors": [[module, field, array.dtype.str, list(array.shape)] for module, field, array in tensors],
        "modules": list(batch.arrays),
        "real_and_capacity": {
            name: [int(real), int(capacity)] for name, (real, capacity) in batch.real_and_capacity.items()
        },
        "targets": int(batch.targets),
        "state": dict(batch.state),
        "refused": [list(refusal) for refusal in batch.refused],
    }
    schema = pa.schema([_COLUMN], metadata={METADATA_KEY: json.dumps(header).encode()})
    parts = (part for *_, array in tensors for part in _byte_parts(array, max_part_bytes))
    return pa.RecordBatchReader.from_batches(schema, (_stream_row(part, schema) for part in parts))


def decode_batch(schema: pa.Schema, stream_rows: Iterable[pa.RecordBatch]) -> GlobalBatch:
    """The batch of a stream; its tensors are read-only views of the stream's memory.

    Raises:
        DataError: Another stream, or not all of it.
    """
    try:
        header = json.loads((schema.metadata or {})[METADATA_KEY])
        if header["version"] != WIRE_VERSION:
            raise DataError(f"a batch of wire version {header['version']}; this is version {WIRE_VERSION}")
        if schema.names != [_COLUMN.name] or schema.types != [_COLUMN.type]:
            raise DataError(f"a batch in columns {schema.names} of {schema.types}")
        parts = _received_parts(stream_rows)
        arrays: dict[str, dict[str, np.ndarray]] = {"": {}} | {module: {} for module in header["modules"]}
        for module, field, dtype, shape in header["tensors"]:
            arrays[module][field] = _assemble_tensor(parts, np.dtype(dtype), tuple(shape))
        if next(parts, None) is not None:
            raise DataError("a batch with more tensors than its header names")
        return GlobalBatch(sample_ids=arrays.pop("")["sample_ids"], arrays=arrays, **_header_fields(header))
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError, pa.ArrowInvalid) as error:
        raise DataError(f"not an encoded batch: {type(error).__name__}: {error}") from error


def _header_fields(header: Mapping[str, Any]) -> dict[str, Any]:
    counts = header["real_and_capacity"]
    return {
        "real_and_capacity": {name: (int(real), int(capacity)) for name, (real, capacity) in counts.items()},
        "targets": int(header["targets"]),
        "state": dict(header["state"]),
        "refused": tuple(Refusal(*fields) for fields in header["refused"]),
    }


def _byte_parts(array: np.ndarray, max_bytes: int) -> Iterator[np.ndarray]:
    """The bytes of an array in order, in runs of at most `max_bytes`; one empty run for an empty array."""
    array_bytes = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    for start in range(0, max(len(array_bytes), 1), max_bytes):
        yield array_bytes[start : start + max_bytes]


def _stream_row(part: np.ndarray, schema: pa.Schema) -> pa.RecordBatch:
    offsets = pa.py_buffer(np.array([0, len(part)], np.int64))
    column = pa.Array.from_buffers(pa.large_binary(), 1, [None, offsets, pa.py_buffer(part)])
    return pa.RecordBatch.from_arrays([column], schema=schema)


def _received_parts(stream_rows: Iterable[pa.RecordBatch]) -> Iterator[np.ndarray]:
    """Views of the bytes of every row; NumPy keeps invalid lengths within the memory of the stream."""
    for stream_row in stream_rows:
        column = stream_row.column(0)
        _, offsets, values = column.buffers()
        ends = np.frombuffer(offsets, np.int64, len(column) + 1, 8 * column.offset)
        content = np.frombuffer(values, np.uint8)
        yield from (content[start:end] for start, end in itertools.pairwise(ends))


def _assemble_tensor(parts: Iterator[np.ndarray], dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    if dtype.kind not in _NUMBER_KINDS or any(side < 0 for side in shape):
        raise DataError(f"a batch with a tensor of {dtype}{list(shape)}")
    missing = dtype.itemsize * int(np.prod(shape, dtype=object))
    received: list[np.ndarray] = []
    while missing > 0 or not received:
        part = next(parts, None)
        if part is None or part.size > missing or (part.size == 0 and missing):
            raise DataError("a batch whose tensors do not have the lengths in its header")
        received.append(part)
        missing -= part.size
    tensor_bytes = received[0] if len(received) == 1 else np.concatenate(received)
    # Arrow may receive a tensor at any address; numbers at unaligned ones are copied here, once.
    return np.require(tensor_bytes.view(dtype).reshape(shape), requirements="A")


def slice_rows(batch: GlobalBatch, needed: NeededRows, phases: DealtPhases) -> GlobalBatch:
    """The needed rows of every module, followed by one empty row that stands for all others.

    Sample ids and the tables of items stay whole, because they are known for every row. Modules of which all rows are
    needed stay as they are.

    Args:
        batch: A batch whose other rows are empty (`BatchLoader.needed`).
        needed: The needed rows.
        phases: The modules whose items the batch has in rows of their own.
    """

    def sliced(array: np.ndarray, kept: list[int], count: int) -> np.ndarray:
        stand_in = next(row for row, expected in enumerate([*kept, count]) if row != expected)
        return array[[*kept, stand_in]]

    return _map_modules(batch, needed, phases, sliced)


def restore_rows(batch: GlobalBatch, needed: NeededRows, phases: DealtPhases) -> GlobalBatch:
    """The inverse of `slice_rows`."""

    def restored(array: np.ndarray, kept: list[int], count: int) -> np.ndarray:
        sent_row = np.full(count, len(kept))
        sent_row[kept] = np.arange(len(kept))
        return array[sent_row]

    return _map_modules(batch, needed, phases, restored)


def _map_modules(
    batch: GlobalBatch,
    needed: NeededRows,
    phases: DealtPhases,
    function: Callable[[np.ndarray, list[int], int], np.ndarray],
) -> GlobalBatch:
    """A function of each array, its needed rows and their number, of the modules of which only some are needed."""
    tables = {phase.table_name for phase in phases.phases.values()}
    arrays = {}
    for module, fields in batch.arrays.items():
        phase = phases.phases.get(module)
        count = phase.rows_of_step(phases.microbatches) if phase else len(batch.sample_ids)
        rows = needed.phases.get(module) if phase else needed.batch
        kept = sorted({*range(count)} if rows is None else {*rows})
        is_whole = module in tables or len(kept) == count
        arrays[module] = fields if is_whole else {name: function(array, kept, count) for name, array in fields.items()}
    return dataclasses.replace(batch, arrays=arrays)
