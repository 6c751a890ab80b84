"""Whole arrays of parts: joined, encoded, and invalid where parts are missing or differ."""

import hypothesis
import jax
import numpy as np
import pytest
from hypothesis import strategies
from hypothesis.extra import numpy as arrays
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from configs.common.errors import UserError
from mmjax.training.verification.configured_run import message_size, verify_run
from mmjax.training.verification.whole_arrays import (
    LARGEST_MESSAGE,
    ArrayBox,
    check_message_size,
    decode_parts,
    encode_parts,
    gather_whole_arrays,
    join_parts,
)
from tests.sharding.runtime.submeshes import stage_mesh
from tests.small_vqa import SmallVQA
from tests.tiny_model import tiny_model
from tests.verified_run import DATA, SETTINGS

DTYPES = strategies.sampled_from([np.float32, np.float64, np.int32, np.uint8])


@hypothesis.given(
    arrays.arrays(DTYPES, arrays.array_shapes(min_dims=0, max_side=6)), strategies.integers(0, 6), strategies.booleans()
)
def test_parts_become_the_array_again(array, cut, overlap):
    name = ("a/b", "ü")
    parts = [ArrayBox(name, array.shape, (0,) * array.ndim, array)]
    if array.ndim:
        cut = min(cut, len(array))
        rest = ArrayBox(name, array.shape, (cut, *(0,) * (array.ndim - 1)), array[cut:])
        parts = [dataclass_with(parts[0], array if overlap else array[:cut]), rest]
    read = list(decode_parts(encode_parts(parts)))
    (whole,) = join_parts(read).values()
    assert whole.dtype == array.dtype and [part.name for part in read] == [name] * len(parts)
    np.testing.assert_array_equal(whole, array)


def dataclass_with(part, values):
    return ArrayBox(part.name, part.shape, part.starts, values)


def test_what_is_missing_or_differs_is_invalid():
    def part(name, start, *values, dtype=np.float32):
        return ArrayBox((name,), (4,), (start,), np.array(values, dtype))

    joined = join_parts(
        [
            *(part("missing", 0, 1, 2), part("missing", 3, 4)),
            *(part("different", 0, 1, 2, 3), part("different", 2, 3, 4), part("different", 1, 9)),
            *(part("counts", 0, 1, 2, 3, 4, dtype=np.int32), part("counts", 0, 2, dtype=np.int32)),
        ]
    )
    np.testing.assert_array_equal(joined["missing",], np.array([1, 2, np.nan, 4], np.float32))
    np.testing.assert_array_equal(joined["different",], np.array([1, np.nan, 3, 4], np.float32))
    np.testing.assert_array_equal(joined["counts",], np.array([np.iinfo(np.int32).min, 2, 3, 4]))


def test_replicas_that_drifted_apart_are_found():
    mesh = stage_mesh(jax.devices()[:4], 2, 2)
    sharding = NamedSharding(mesh, P("tensor"))
    right = jax.device_put(np.arange(8, dtype=np.float32), sharding)
    shards = [shard.data for shard in right.addressable_shards]
    drifted = jax.make_array_from_single_device_arrays((8,), sharding, [shards[0] + 1, *shards[1:]])
    gathered = gather_whole_arrays({("right",): right, ("drifted",): drifted})
    np.testing.assert_array_equal(gathered["right",], np.arange(8))
    np.testing.assert_array_equal(np.isnan(gathered["drifted",]), [True] * 4 + [False] * 4)


def test_a_model_too_large_for_a_message_is_refused_before_anything_runs(monkeypatch):
    small, large = tiny_model(vocabulary=48), tiny_model(vocabulary=50_000_000)
    check_message_size(message_size(small, steps=2))
    check_message_size(LARGEST_MESSAGE)
    assert message_size(small, steps=2) == 1.5 * message_size(small, steps=1)
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.raises(UserError, match=r"^verification by 2 processes .* GiB; .*--shrink, or in one process$"):
        verify_run(large, DATA, SmallVQA("train"), [], SETTINGS, steps=1)
