"""Tiles of groups of rows, and the arithmetic that multiplying them costs."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmjax.training.metrics.flops import count_flops
from pallas_kernels.grouped_matmul import grouped_matmul, tiled


@st.composite
def groups_of_rows(draw):
    """Sizes of some groups, and the number of rows, of which some may be behind the last group."""
    sizes = draw(st.lists(st.integers(0, 40), min_size=1, max_size=12))
    return sizes, max(sum(sizes) + draw(st.integers(0, 20)), 1)


@given(groups_of_rows(), st.sampled_from([1, 8, 16, 64]))
def test_tiles_hold_every_row_of_every_group_once_in_order(groups, size):
    sizes, rows = groups
    tiles = jax.tree.map(np.asarray, tiled.make_tiles(jnp.asarray(sizes, jnp.int32), rows, size))
    covered = [
        (int(group), row)
        for group, start, count in zip(tiles.groups, tiles.starts, tiles.sizes, strict=True)
        for row in range(start, start + count)
    ]
    ends = np.cumsum(sizes)
    assert covered == [(int(np.searchsorted(ends, row, side="right")), row) for row in range(sum(sizes))]
    assert max(tiles.sizes) <= size and tiles.is_first.sum() == np.count_nonzero(sizes)
    assert (tiles.starts[tiles.sizes == 0] == rows).all()


@given(groups_of_rows(), st.sampled_from([8, 16, 64]))
def test_there_are_as_many_tiles_as_any_sizes_can_need(groups, size):
    sizes, rows = groups
    most = tiled.tile_count(rows, len(sizes), size)
    assert sum(-(-n // size) for n in sizes) <= most
    # Groups of one row more than whole tiles need all of them, where there are rows enough.
    if rows >= len(sizes):
        worst = [1] * len(sizes)
        worst[0] += (rows - len(sizes)) // size * size
        assert most - sum(-(-n // size) for n in worst) <= 1


@pytest.mark.parametrize("groups", [1, 4, 8, 32, 128])
@pytest.mark.parametrize("rows_of_group", [64, 100, 512, 4096])
def test_arithmetic_is_at_most_an_eighth_more_than_of_the_groups(groups, rows_of_group):
    rows, inner, outer = groups * rows_of_group, 16, 32
    x, matrices = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((rows, inner), (groups, inner, outer)))
    sizes = jax.ShapeDtypeStruct((groups,), jnp.int32)

    def gradients(x, matrices, sizes):
        multiply = functools.partial(grouped_matmul, group_sizes=sizes, implementation="tiled")
        return jax.vjp(multiply, x, matrices)[1](jnp.ones((rows, outer)))

    needed = 2 * rows * inner * outer
    assert needed <= count_flops(gradients, x, matrices, sizes) / 3 <= 1.125 * needed
