"""Blocks of positions that attend to each other both ways within causal attention, against every pair of positions."""

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.packed_attention import make_segment_mask, packed_attention
from pallas_kernels.packed_attention.block_pairs import blocks_overlap
from pallas_kernels.packed_attention.segment_mask import dense_mask
from tests.pallas_kernels.packed_attention.cases import (
    AttentionCase,
    attention,
    attention_magnitudes,
    branches_of,
    expected_mask,
    rows,
)


def blocks_of(random: np.random.Generator, segments: np.ndarray) -> np.ndarray:
    """Runs of random numbers; the same number may come back in another run."""
    cuts = random.random(segments.shape) < 0.3
    return np.where(segments > 0, np.cumsum(cuts, axis=1) % 5, 0).astype(np.int32)


def with_blocks(case: AttentionCase, blocks: np.ndarray) -> np.ndarray:
    """`expected_mask` where later keys of the same block are seen too, as far as segment and branch allow."""
    both_ways = expected_mask(case._replace(causal=False, window=None))
    same = (blocks[:, :, None] == blocks[:, None, :]) & (blocks[:, :, None] > 0)
    return expected_mask(case) | both_ways & same


@st.composite
def block_cases(draw, lengths=(1, 9, 23, 40)):
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    segments = rows(random, 2, draw(st.sampled_from(lengths)))
    branches = branches_of(random, segments) if draw(st.booleans()) else None
    case = AttentionCase(segments, None, branches, True, draw(st.sampled_from([None, 1, 3, 10])))
    return case, blocks_of(random, segments)


def mask_of(case, blocks, **options):
    return make_segment_mask(
        case.segments, branches=case.branches, blocks=blocks, causal=True, positions=case.positions,
        window=case.window, **options,
    )  # fmt: skip


@hypothesis.given(block_cases(lengths=(1, 23)))  # few lengths, since each is compiled
@hypothesis.settings(max_examples=60)
def test_the_dense_mask_follows_the_definition(drawn):
    case, blocks = drawn
    np.testing.assert_array_equal(dense_mask(mask_of(case, blocks)), with_blocks(case, blocks))


@pytest.mark.layouts
@hypothesis.given(block_cases(), st.sampled_from([(1, 1), (4, 4), (4, 7), (9, 2)]))
@hypothesis.settings(max_examples=80)
def test_no_pair_of_blocks_is_missed(drawn, sizes):
    case, blocks = drawn
    mask = mask_of(case, blocks, block=4)
    visible = with_blocks(case, blocks)
    visible = np.pad(visible, ((0, 0), *((0, -visible.shape[axis + 1] % sizes[axis]) for axis in (0, 1))))
    r, s, t = visible.shape
    expected = visible.reshape(r, s // sizes[0], sizes[0], t // sizes[1], sizes[1]).any(axis=(2, 4))
    overlap = blocks_overlap(mask.queries, mask.keys, None, sizes)
    assert not np.any(expected & ~np.asarray(overlap))


@pytest.mark.layouts
@hypothesis.given(block_cases(lengths=(23,)), st.integers(0, 2**32 - 1))
@hypothesis.settings(max_examples=20)
def test_output_and_gradients_follow_the_definition(drawn, seed):
    case, blocks = drawn
    random = np.random.default_rng(seed)
    inputs = [jnp.asarray(random.normal(size=(2, 23, heads, 8)), jnp.float32) for heads in (4, 2, 2, 4)]
    visible = with_blocks(case, blocks)
    expected, magnitudes = attention(*inputs, visible), attention_magnitudes(*inputs, visible)
    for implementation in ("dense", "blocked"):
        mask = mask_of(case, blocks, block=4)
        output, back = jax.vjp(lambda *x: packed_attention(*x, mask, implementation=implementation), *inputs[:3])  # noqa: B023
        for actual, exact, magnitude in zip((output, *back(inputs[3])), expected, magnitudes, strict=True):
            assert np.linalg.norm(np.asarray(actual, np.float64) - exact) <= 1e-6 * np.linalg.norm(magnitude)


@pytest.mark.parity
def test_images_are_seen_as_in_gemma_3():
    is_image = np.array([[0, 1, 1, 1, 0, 0, 1, 1, 0]])
    gemma3 = pytest.importorskip("transformers.models.gemma3.modeling_gemma3")
    torch, masking = pytest.importorskip("torch"), pytest.importorskip("transformers.masking_utils")
    published = masking.blockwise_overlay(gemma3.get_block_sequence_ids_for_mask(torch.from_numpy(is_image)))
    expected = [[j <= i or bool(published(0, 0, i, j)) for j in range(9)] for i in range(9)]
    blocks = np.array([[0, 1, 1, 1, 0, 0, 2, 2, 0]], np.int32)
    mask = dense_mask(make_segment_mask(np.ones((1, 9), np.int32), blocks=blocks, causal=True))
    assert np.asarray(mask)[0].tolist() == expected


def test_an_image_costs_the_pairs_that_it_adds():
    """A row of one segment in blocks of 8, in which 32 positions see each other: 4 x 3 / 2 pairs more."""
    ones, places = np.ones((1, 128), np.int32), np.arange(128)[None]
    image = ((places >= 64) & (places < 96)).astype(np.int32)
    counts = [
        int(make_segment_mask(ones, blocks=blocks, causal=True, block=8).block_pairs.count)
        for blocks in (None, np.zeros_like(image), image)
    ]
    assert counts == [16 * 17 // 2, 16 * 17 // 2, 16 * 17 // 2 + 6]


def test_blocks_without_causal_attention_or_of_other_shapes_are_refused():
    segments = np.ones((1, 4), np.int32)
    for options in ({"blocks": segments}, {"blocks": segments[:, :2], "causal": True}):
        with pytest.raises(ValueError, match=r"blocks int32\[1, \d\] need causal attention"):
            make_segment_mask(segments, **options)
