"""Masks by hand, and the blocks that overlap against a search through all pairs of positions."""

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.packed_attention import make_segment_mask
from pallas_kernels.packed_attention.block_pairs import blocks_overlap
from pallas_kernels.packed_attention.segment_mask import MAX_DENSE_PAIRS, SegmentMask, dense_mask
from tests.pallas_kernels.packed_attention.cases import AttentionCase, cases, expected_mask, row

LENGTHS = (1, 23)
"""Of rows; few, because operations are compiled for each."""
SEGMENTS = np.array([[1, 1, 2, 2, 0]], np.int32)


def drawn(mask):
    return ["".join("x" if visible else "." for visible in line) for line in np.asarray(dense_mask(mask))[0]]


def test_positions_attend_to_their_own_segment_and_padding_to_nothing():
    assert drawn(make_segment_mask(SEGMENTS)) == ["xx...", "xx...", "..xx.", "..xx.", "....."]


def test_causal_positions_attend_to_the_trunk_and_their_own_branch_before_them():
    segments = np.array([[1, 1, 2, 2, 2, 2, 2, 2, 0]], np.int32)
    branches = np.array([[0, 0, 0, 0, 1, 1, 2, 2, 0]], np.int32)
    assert drawn(make_segment_mask(segments, branches=branches, causal=True)) == [
        "x........",
        "xx.......",
        "..x......",  # another sample
        "..xx.....",
        "..xxx....",
        "..xxxx...",
        "..xx..x..",  # another branch of the same sample
        "..xx..xx.",
        ".........",
    ]


def test_queries_attend_to_the_keys_of_their_segment():
    assert drawn(make_segment_mask(SEGMENTS[:, ::2], keys=SEGMENTS)) == ["xx...", "..xx.", "....."]


@hypothesis.given(cases(LENGTHS))
@hypothesis.settings(max_examples=60)
def test_the_dense_mask_follows_the_definition(case: AttentionCase):
    mask = make_segment_mask(
        case.segments, keys=case.keys, branches=case.branches, causal=case.causal, **window_of(case)
    )
    np.testing.assert_array_equal(dense_mask(mask), expected_mask(case))


def window_of(case: AttentionCase) -> dict:
    return {} if case.window is None else {"window": case.window, "positions": case.positions}


def blocks_of(case: AttentionCase, blocks: tuple[int, int]) -> np.ndarray:
    """Pairs of blocks that hold a query and a key that it attends to."""
    mask = expected_mask(case)
    mask = np.pad(mask, ((0, 0), *((0, -mask.shape[axis + 1] % blocks[axis]) for axis in (0, 1))))
    rows, s, t = mask.shape
    return mask.reshape(rows, s // blocks[0], blocks[0], t // blocks[1], blocks[1]).any(axis=(2, 4))


@hypothesis.given(cases(LENGTHS), st.sampled_from([(1, 1), (4, 7), (9, 2)]))
@hypothesis.settings(max_examples=80)
def test_blocks_overlap_where_a_query_attends_to_a_key(case: AttentionCase, blocks: tuple[int, int]):
    mask = make_segment_mask(
        case.segments, keys=case.keys, branches=case.branches, causal=case.causal, **window_of(case)
    )
    overlap = blocks_overlap(mask.queries, mask.keys, mask.first_visible, blocks)
    expected = blocks_of(case, blocks)
    assert not np.any(expected & ~np.asarray(overlap))
    # Without branches, other keys or padding between segments it is exact.
    if case.branches is None and case.keys is None and not np.any(np.diff((case.segments > 0).astype(int)) > 0):
        np.testing.assert_array_equal(overlap, expected)


@hypothesis.given(st.integers(0, 2**32 - 1))
@hypothesis.settings(max_examples=30)
def test_no_overlap_is_missed_where_segments_are_out_of_order(seed: int):
    random = np.random.default_rng(seed)
    case = AttentionCase(random.permuted(np.stack([row(random, 30), row(random, 30)]), axis=1), None, None, True)
    mask = make_segment_mask(case.segments, causal=True, ordered=False)
    overlap = blocks_overlap(mask.queries, mask.keys, None, (4, 3))
    assert not np.any(blocks_of(case, (4, 3)) & ~np.asarray(overlap))


def test_the_number_of_pairs_is_that_of_the_segments():
    counts = []
    for segments in (1, 2, 4, 8):
        ids = np.repeat(np.arange(1, segments + 1, dtype=np.int32), 512 // segments)[None]
        counts.append(int(make_segment_mask(ids, block=16).block_pairs.count))
    assert counts == [32 * 32, 32 * 16, 32 * 8, 32 * 4]
    padded = np.where(np.arange(512) < 100, 1, 0).astype(np.int32)[None]
    assert int(make_segment_mask(padded, block=16).block_pairs.count) == 7 * 7
    assert int(make_segment_mask(padded, causal=True, block=16).block_pairs.count) == 7 * 8 / 2
    assert int(make_segment_mask(np.zeros((3, 512), np.int32), block=16).block_pairs.count) == 0


def test_branches_do_not_overlap_each_other():
    branches = np.repeat(np.arange(9, dtype=np.int32), 32)[None]
    mask = make_segment_mask(np.ones_like(branches), branches=branches, causal=True, block=32)
    assert int(mask.block_pairs.count) == 9 + 8  # each with itself, and every branch with the trunk
    assert int(mask.block_pairs.pair_indices[1]) == 9  # block 1 of queries, block 0 of keys


def test_short_rows_have_no_blocks():
    side = int(MAX_DENSE_PAIRS**0.5)
    assert make_segment_mask(np.ones((2, side), np.int32)).block_pairs is None
    assert make_segment_mask(np.ones((2, side + 1), np.int32)).block_pairs.block_sizes == (64, 64)
    assert make_segment_mask(np.ones((1, 10000), np.int32)).block_pairs.block_sizes == (128, 128)


def test_a_segment_mask_is_a_pytree():
    mask = make_segment_mask(SEGMENTS, causal=True, block=2)
    again = jax.jit(lambda mask: mask)(mask)
    assert isinstance(again, SegmentMask) and again.is_causal and again.block_pairs.block_sizes == (2, 2)
    np.testing.assert_array_equal(again.block_pairs.pair_indices, mask.block_pairs.pair_indices)


BAD_SEGMENTS = {
    r"segments int32\[1, 5\] are out of order in row 0": {"segments": SEGMENTS[:, [2, 0, 1, 3, 4]]},
    r"segments int32\[1, 5\] are out of order": {"segments": -SEGMENTS},
    r"keys int32\[1, 5\] are out of order": {"segments": SEGMENTS, "keys": SEGMENTS[:, ::-1]},
    r"segments are float32\[1, 5\]; give whole numbers": {"segments": SEGMENTS.astype(np.float32)},
    r"segments are int32\[5\]": {"segments": SEGMENTS[0]},
    r"keys are int32\[2, 5\] and segments int32\[1, 5\]; give as many rows": {
        "segments": SEGMENTS,
        "keys": np.repeat(SEGMENTS, 2, axis=0),
    },
    r"branches are int32\[1, 3\] and segments int32\[1, 5\]": {"segments": SEGMENTS, "branches": SEGMENTS[:, :3]},
    r"queries int32\[1, 5\] have other keys int32\[1, 5\]: these can be neither causal nor in branches": {
        "segments": SEGMENTS,
        "keys": SEGMENTS,
        "causal": True,
    },
}


@pytest.mark.parametrize("words", BAD_SEGMENTS)
def test_bad_segments_are_refused_with_their_shapes(words):
    with pytest.raises(ValueError, match=words):
        make_segment_mask(**BAD_SEGMENTS[words])


def test_the_order_is_checked_only_where_values_are_known():
    backwards = jnp.asarray(SEGMENTS[:, ::-1])
    with pytest.raises(ValueError, match="out of order"):
        make_segment_mask(backwards)
    assert not bool(jax.jit(lambda ids: dense_mask(make_segment_mask(ids)))(backwards)[0, 0, 0])
