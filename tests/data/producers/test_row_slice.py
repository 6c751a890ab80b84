"""Some rows of a batch, cut out and put back."""

import hypothesis
import numpy as np
from hypothesis import strategies as st

from data.packing.global_batch import GlobalBatch
from data.producers.row_slice import restore_rows, slice_rows


@hypothesis.settings(deadline=None)
@hypothesis.given(
    st.integers(1, 6).flatmap(lambda n: st.tuples(st.just(n), st.none() | st.sets(st.integers(0, n - 1))))
)
def test_a_batch_that_was_cut_is_whole_again(drawn):
    count, needed = drawn
    rows = None if needed is None else sorted(needed)
    tokens = np.arange(count * 3, dtype=np.int32).reshape(count, 3)
    index = tokens.astype(np.float32)[..., None] + 1
    if rows is not None:
        empty = np.setdiff1d(np.arange(count), rows)
        tokens[empty], index[empty] = 0, -1
    ids = np.arange(count, dtype=np.int32)[:, None]
    batch = GlobalBatch({"backbone": {"tokens": tokens}, "vision": {"index": index}}, ids, {}, 0)
    small = slice_rows(batch, rows)
    assert len(small.arrays["backbone"]["tokens"]) == (count if rows is None else min(count, len(rows) + 1))
    whole = restore_rows(small, rows)
    np.testing.assert_array_equal(whole.sample_ids, ids)
    np.testing.assert_array_equal(whole.arrays["backbone"]["tokens"], tokens)
    np.testing.assert_array_equal(whole.arrays["vision"]["index"], index)
