"""Batches as Arrow streams are decoded as they were encoded, and other streams are refused."""

import io
import json
import string

import hypothesis
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from data.errors import DataError
from data.packing.dealt_phases import DealtPhases
from data.packing.global_batch import GlobalBatch
from data.packing.phases.needed_rows import NeededRows
from data.packing.rows.refusals import Refusal
from data.producers import wire
from data.producers.wire import restore_rows, slice_rows

NAMES = st.text(string.ascii_lowercase + "_", min_size=1, max_size=8)
ARRAYS = hnp.arrays(
    st.sampled_from([np.float32, np.int32, np.int64, np.uint8, np.bool_, np.float16]),
    hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5),
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=6,
)
FIELDS = st.builds(
    dict,
    arrays=st.dictionaries(NAMES, st.dictionaries(NAMES, ARRAYS, max_size=4), max_size=3),
    sample_ids=ARRAYS,
    real_and_capacity=st.dictionaries(NAMES, st.tuples(st.integers(0), st.integers(0)), max_size=3),
    targets=st.integers(0, 2**40),
    state=st.dictionaries(NAMES, JSON, max_size=3),
    refused=st.lists(st.builds(Refusal, *[st.text()] * 4), max_size=3).map(tuple),
)


def sent(batch: GlobalBatch, **options: int) -> bytes:
    """The bytes of its stream."""
    reader = wire.encode_batch(batch, **options)
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, reader.schema) as writer:
        for rows in reader:
            writer.write_batch(rows)
    return sink.getvalue()


def received(stream: bytes) -> GlobalBatch:
    with pa.ipc.open_stream(stream) as reader:
        return wire.decode_batch(reader.schema, list(reader))


def assert_same(batch: GlobalBatch, other: GlobalBatch) -> None:
    assert list(batch.arrays) == list(other.arrays)
    pairs = [(batch.sample_ids, other.sample_ids)]
    for module, fields in batch.arrays.items():
        assert list(fields) == list(other.arrays[module])
        pairs += [(fields[name], other.arrays[module][name]) for name in fields]
    for one, two in pairs:
        assert (one.dtype, one.shape, one.tobytes()) == (two.dtype, two.shape, two.tobytes())
        assert two.flags.aligned and two.flags.c_contiguous
    for name in ("real_and_capacity", "targets", "state", "refused"):
        assert getattr(batch, name) == getattr(other, name)


@hypothesis.settings(deadline=None, max_examples=60)
@hypothesis.given(FIELDS, st.integers(1, 50))
def test_batches_are_decoded_unchanged_for_every_part_size(fields, max_part_bytes):
    batch = GlobalBatch(**fields)
    assert_same(batch, received(sent(batch, max_part_bytes=max_part_bytes)))
    assert_same(batch, received(sent(batch)))


def small_batch() -> GlobalBatch:
    tokens = np.arange(12, dtype=np.int32).reshape(3, 4)
    return GlobalBatch(
        arrays={"backbone": {"tokens": tokens}}, sample_ids=np.ones(3, np.int32), real_and_capacity={}, targets=0
    )


def test_tensors_are_not_copied():
    batch = small_batch()
    tokens = batch.arrays["backbone"]["tokens"]
    reader = wire.encode_batch(batch)
    rows = list(reader)
    assert rows[1].column(0).buffers()[2].address == tokens.ctypes.data
    assert np.shares_memory(wire.decode_batch(reader.schema, rows).arrays["backbone"]["tokens"], tokens)


def test_non_contiguous_tensors_are_decoded_unchanged():
    batch = small_batch()
    batch.arrays["backbone"]["tokens"] = np.arange(12, dtype=np.int32).reshape(4, 3).T[:, ::2]
    assert_same(batch, received(sent(batch)))


def changed(**fields: object) -> tuple[pa.Schema, list[pa.RecordBatch]]:
    """A stream whose header says something else than it holds."""
    reader = wire.encode_batch(small_batch())
    header = json.loads(reader.schema.metadata[wire.METADATA_KEY]) | fields
    return reader.schema.with_metadata({wire.METADATA_KEY: json.dumps(header).encode()}), list(reader)


IDS = ["", "sample_ids", "<i4", [3]]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"version": 1}, "wire version 1"),
        ({"tensors": [IDS]}, "more tensors"),
        ({"tensors": [IDS, ["backbone", "tokens", "<i4", [3, 5]]]}, "do not have the lengths"),
        ({"tensors": [IDS, ["backbone", "tokens", "<i4", [3, 3]]]}, "do not have the lengths"),
        ({"tensors": [IDS, ["backbone", "tokens", "<i4", [-3, -4]]]}, "tensor of int32"),
        ({"tensors": [IDS, ["backbone", "tokens", "|O", [6]]]}, "tensor of object"),
        ({"tensors": [IDS, ["backbone", "tokens", "nonsense", [6]]]}, "not an encoded batch"),
        ({"tensors": [IDS, ["elsewhere", "tokens", "<i4", [3, 4]]]}, "not an encoded batch"),
        ({"targets": None}, "not an encoded batch"),
        ({"refused": [["too", "few"]]}, "not an encoded batch"),
    ],
)
def test_streams_that_contradict_their_header_are_refused(fields, words):
    schema, rows = changed(**fields)
    with pytest.raises(DataError, match=words):
        wire.decode_batch(schema, rows)


def test_other_streams_are_refused():
    schema = pa.schema([("bytes", pa.large_binary())])
    with pytest.raises(DataError, match="not an encoded batch"):
        wire.decode_batch(schema, [])
    with pytest.raises(DataError, match="not an encoded batch"):
        wire.decode_batch(schema.with_metadata({wire.METADATA_KEY: b"\x80pickle"}), [])


@hypothesis.settings(deadline=None)
@hypothesis.given(
    st.integers(1, 6).flatmap(lambda n: st.tuples(st.just(n), st.none() | st.sets(st.integers(0, n - 1))))
)
def test_sliced_rows_are_restored(drawn):
    count, needed = drawn
    rows = None if needed is None else sorted(needed)
    tokens = np.arange(count * 3, dtype=np.int32).reshape(count, 3)
    index = tokens.astype(np.float32)[..., None] + 1
    if rows is not None:
        empty = np.setdiff1d(np.arange(count), rows)
        tokens[empty], index[empty] = 0, -1
    ids = np.arange(count, dtype=np.int32)[:, None]
    batch = GlobalBatch(
        arrays={"backbone": {"tokens": tokens}, "vision": {"index": index}},
        sample_ids=ids,
        real_and_capacity={},
        targets=0,
    )
    wanted = NeededRows(None if rows is None else tuple(rows))
    small = slice_rows(batch, wanted, DealtPhases())
    assert len(small.arrays["backbone"]["tokens"]) == (count if rows is None else min(count, len(rows) + 1))
    whole = restore_rows(small, wanted, DealtPhases())
    np.testing.assert_array_equal(whole.sample_ids, ids)
    np.testing.assert_array_equal(whole.arrays["backbone"]["tokens"], tokens)
    np.testing.assert_array_equal(whole.arrays["vision"]["index"], index)
