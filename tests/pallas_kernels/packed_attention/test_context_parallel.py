"""Attention over several devices, by a ring and by heads, against attention on one, and how the work is divided."""

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from benchmarks.relative_error import relative_error
from pallas_kernels.packed_attention import HeadExchangeMask, make_ring_mask, make_segment_mask, packed_attention
from pallas_kernels.packed_attention.zigzag import chunk_size, gather_zigzag, split_zigzag, zigzag_order
from tests.pallas_kernels.packed_attention.cases import AttentionCase, branches_of, rows
from tests.tiers import first_in_default

AXES = ("context",)


def on_ranks(function, ranks: int, arguments, out_specs):
    """The function on every rank of a mesh of `data` 2 and `context`; its arguments are the same on all ranks."""
    mesh = jax.make_mesh((2, ranks), ("data", "context"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    data = jax.tree.map(lambda _: P("data"), arguments)
    return jax.jit(jax.shard_map(function, mesh=mesh, in_specs=data, out_specs=out_specs))(*arguments)


def mask_of(case: AttentionCase, segments, branches, blocks, positions):
    window = {} if case.window is None else {"positions": positions, "window": case.window}
    return make_segment_mask(
        segments, branches=branches, blocks=blocks, causal=case.causal, ordered=False, block=8, **window
    )


@st.composite
def ring_cases(draw):
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    segments = rows(random, 2, draw(st.sampled_from([16, 48])))
    causal = draw(st.booleans())
    branches = branches_of(random, segments) if causal and draw(st.booleans()) else None
    window = draw(st.sampled_from([None, 1, 5])) if causal else None
    blocks = None
    if causal and draw(st.booleans()):
        blocks = np.where(segments > 0, np.cumsum(random.random(segments.shape) < 0.3, axis=1) % 5, 0).astype(np.int32)
    return AttentionCase(segments, None, branches, causal, window), blocks


def ring_mask(mask):
    return make_ring_mask(mask, AXES, block=8)


def head_exchange_mask(mask):
    return HeadExchangeMask(mask, AXES)


@pytest.mark.parametrize(
    ("divided", "ranks"), first_in_default([(ring_mask, 2), (ring_mask, 4), (head_exchange_mask, 2)])
)
@hypothesis.given(ring_cases(), st.integers(0, 2**32 - 1))
@hypothesis.settings(max_examples=8)  # each is compiled
def test_attention_over_ranks_equals_attention_on_one_device(divided, ranks, drawn, seed):
    case, blocks = drawn
    random = np.random.default_rng(seed)
    length = case.segments.shape[1]
    shapes = [(2, length, 4, 6), (2, length, 2, 6), (2, length, 2, 3), (2, length, 4, 3)]
    query, key, value, cotangent = (jnp.asarray(random.normal(size=shape), jnp.float32) for shape in shapes)
    sinks = jnp.asarray(random.normal(size=4), jnp.float32)
    ids = (case.segments, case.branches, blocks, case.positions)
    options = {"softcap": 4.0}

    def attend(make, *arrays):
        return packed_attention(*arrays[:3], make(mask_of(case, *ids)), sinks=arrays[3], **options)

    @jax.jit
    def on_one_device(cotangent, *arrays):
        output, back = jax.vjp(lambda *arrays: attend(lambda mask: mask, *arrays), *arrays)
        return output, *back(cotangent)

    expected = on_one_device(cotangent, query, key, value, sinks)

    def on_rank(query, key, value, cotangent, segments, branches, blocks, positions):
        def attend_here(*arrays):
            mask = divided(mask_of(case, segments, branches, blocks, positions))
            *sides, sinks = arrays
            local = [split_zigzag(x, AXES) for x in sides]
            return gather_zigzag(packed_attention(*local, mask, sinks=sinks, **options), AXES)

        output, back = jax.vjp(attend_here, query, key, value, sinks)
        return output, *back(cotangent)

    specs = (*(P("data"),) * 4, P())
    actual = on_ranks(on_rank, ranks, (query, key, value, cotangent, *ids), specs)
    for result, exact in zip(actual, expected, strict=True):
        assert relative_error(result, np.asarray(exact, np.float64)) < 2e-6


def computed_pairs(segments: np.ndarray, ranks: int, positions: np.ndarray | None = None, window: int | None = None):
    """Pairs of blocks of every rank and step, `[context, steps]`, of causal rows in blocks of 64."""

    def count(segments):
        ring = make_ring_mask(make_segment_mask(segments, causal=True), AXES, block=64)
        return jnp.stack([mask.block_pairs.count for mask in ring.steps])[None]

    mesh = jax.make_mesh((ranks,), AXES, axis_types=(jax.sharding.AxisType.Auto,))
    return np.asarray(jax.jit(jax.shard_map(count, mesh=mesh, in_specs=P(), out_specs=P("context")))(segments))


def test_each_pair_of_blocks_is_computed_once():
    """Of a row of one segment, all of its pairs; of two unlike ones, theirs."""
    for lengths in ((2048,), (512, 1536)):
        segments = np.repeat(np.arange(1, len(lengths) + 1), lengths).astype(np.int32)[None]
        needed = sum(n * (n + 1) // 2 for n in (length // 64 for length in lengths))
        assert computed_pairs(segments, 4).sum() == needed


def test_causal_work_is_even_over_the_ranks():
    pairs = computed_pairs(np.ones((1, 2048), np.int32), 4).sum(axis=1)
    assert pairs.max() == pairs.min()


@pytest.mark.parametrize(("length", "ranks", "chunk"), [(8192, 4, 64), (65536, 4, 128), (96, 4, 12), (4800, 4, 75)])
def test_chunks_are_dealt_there_and_back(length, ranks, chunk):
    assert chunk_size(length, ranks) == chunk
    order = zigzag_order(length, ranks)
    np.testing.assert_array_equal(np.sort(order), np.arange(length))
    rank_positions = order.reshape(ranks, -1)
    assert rank_positions[0, 0] == 0
    assert rank_positions[-1, 0] == (ranks - 1) * chunk
    assert rank_positions[0, chunk] == (2 * ranks - 1) * chunk


def test_a_row_that_cannot_be_divided_is_refused():
    with pytest.raises(ValueError, match="4 ranks cannot take two chunks each of a row of 20 positions"):
        zigzag_order(20, 4)


@pytest.mark.parametrize("shape", [(2, 48), (2, 48, 3)])
def test_positions_split_among_ranks_come_together_again(shape):
    x = jnp.arange(np.prod(shape)).reshape(shape)
    whole = on_ranks(lambda x: gather_zigzag(split_zigzag(x, AXES), AXES), 4, (x,), P("data"))
    np.testing.assert_array_equal(whole, x)


def test_ranks_that_do_not_divide_the_heads_are_refused():
    def attend(x, segments):
        mask = HeadExchangeMask(make_segment_mask(segments), AXES)
        local = split_zigzag(x, AXES)
        return gather_zigzag(packed_attention(local, local, local, mask), AXES)

    arguments = (jnp.ones((2, 16, 6, 4)), np.ones((2, 16), np.int32))
    with pytest.raises(ValueError, match="4 context-parallel ranks do not divide 6 heads of a tensor rank"):
        on_ranks(attend, 4, arguments, P("data"))
