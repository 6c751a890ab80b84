"""Tensor layouts: round trips are bit-identical, and shapes are known before anything is read."""

import math

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmjax.weights.published.channel_orders import ColumnsFirst, InterleavedRotary
from mmjax.weights.published.tensor_layouts import (
    CONVOLUTION,
    CONVOLUTION_1D,
    IDENTITY,
    LINEAR,
    Fused,
    PatchConvolution,
    Reshaped,
    Stacked,
    Transposed,
)

SIDE = st.integers(1, 4)


# Name -> how many sizes a case has, and the layout and our shapes of such sizes. (They are made in the test and not in
# a strategy, which must not use `random`: the check of types does.)
CASES = {
    "as is": (2, lambda *shape: (IDENTITY, (shape,))),
    "linear": (2, lambda *shape: (LINEAR, (shape,))),
    "1-D": (3, lambda *shape: (CONVOLUTION_1D, (shape,))),
    "2-D": (4, lambda *shape: (CONVOLUTION, (shape,))),
    "reshaped": (2, lambda *shape: (Reshaped((1, *shape, 1)), (shape,))),
    "patches": (4, lambda h, w, c, d: (PatchConvolution((h, w)), ((h * w * c, d),))),
    "patches of frames": (5, lambda t, h, w, c, d: (PatchConvolution((t, h, w)), ((t * h * w * c, d),))),
    "patches in a matrix": (4, lambda h, w, c, d: (PatchConvolution((h, w), flattened=True), ((h * w * c, d),))),
    "windows": (3, lambda w, c, d: (PatchConvolution((w,)), ((w * c, d),))),
    "c_attn": (2, lambda *shape: (Fused(axis=1, part_layout=IDENTITY), (shape,) * 3)),
    "fused biases": (2, lambda a, b: (Fused(part_layout=IDENTITY), ((a,), (b,)))),
    "pairs": (3, lambda h, e, d: (InterleavedRotary(h), ((d, 2 * h * e),))),
    "pairs of biases": (2, lambda h, e: (InterleavedRotary(h, IDENTITY), ((2 * h * e,),))),
    "columns first": (3, lambda h, e, d: (InterleavedRotary(h, ColumnsFirst(h)), ((d, 4 * h * e),))),
    "wqkv": (4, lambda k, q, e, d: (Fused(groups=k), ((d, k * q * e), (d, k * e), (d, k * e)))),
    "class and patches": (
        2,
        lambda p, d: (Fused(axis=1, part_layout=(Reshaped((1, 1, d)), Reshaped((1, p, d)))), ((d,), (p, d))),
    ),
    "experts": (3, lambda *shape: (Stacked(), (shape,))),
    "fused experts": (3, lambda *shape: (Fused(axis=1, part_layout=Transposed((0, 2, 1))), (shape, shape))),
}


def numbered(shapes, dtype=np.uint16):
    """Arrays whose numbers are all distinct."""
    ends = np.cumsum([0, *(math.prod(shape) for shape in shapes)])
    return tuple(
        np.arange(start, end).astype(dtype).reshape(shape)
        for start, end, shape in zip(ends[:-1], ends[1:], shapes, strict=True)
    )


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
@given(data=st.data())
def test_round_trips_are_bit_identical(case, data):
    count, made = case
    layout, ours = made(*data.draw(st.tuples(*[SIDE] * count)))
    shapes = layout.published_shapes(ours)
    theirs = numbered(shapes)
    converted = layout.to_parameters(theirs, ours)
    assert tuple(array.shape for array in converted) == ours
    assert sorted(np.concatenate([array.ravel() for array in converted])) == list(range(sum(map(math.prod, ours))))
    back = layout.to_published(converted)
    assert len(back) == len(theirs)
    for before, after in zip(theirs, back, strict=True):
        np.testing.assert_array_equal(before, after)


def test_interleaved_rotary_pairs_become_half_a_head_apart():
    (found,) = InterleavedRotary(2, IDENTITY).to_parameters((np.arange(12),), ((12,),))
    assert found.tolist() == [0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11]


def test_channels_that_rotate_by_columns_follow_those_that_rotate_by_rows():
    """A head of 8 channels: two pairs for columns, then two for rows, whose first and second channels are apart."""
    (found,) = InterleavedRotary(1, ColumnsFirst(1, IDENTITY)).to_parameters((np.arange(8),), ((8,),))
    assert found.tolist() == [4, 6, 0, 2, 5, 7, 1, 3]


@pytest.mark.parametrize("layout", [IDENTITY, LINEAR, CONVOLUTION_1D, CONVOLUTION], ids=repr)
@given(data=st.data())
def test_a_slice_of_the_tensor_becomes_the_slice_of_the_parameter(layout, data):
    rank = len(getattr(layout, "axes", (0, 1)))
    shape = tuple(data.draw(SIDE) for _ in range(rank))
    part = tuple(slice(start := data.draw(st.integers(0, n - 1)), data.draw(st.integers(start + 1, n))) for n in shape)
    (theirs,) = numbered(layout.published_shapes((shape,)))
    (whole,) = layout.to_parameters((theirs,), (shape,))
    (read,) = layout.to_parameters((theirs[layout.published_slice(part)],), (whole[part].shape,))
    np.testing.assert_array_equal(read, whole[part])


def test_nan_bit_patterns_survive():
    theirs = np.array([[0x7FC1, 0x8000], [0xFF80, 0x0001]], np.uint16).view(ml_dtypes.bfloat16)
    (back,) = LINEAR.to_published(LINEAR.to_parameters((theirs,), ((2, 2),)))
    np.testing.assert_array_equal(back.view(np.uint16), theirs.view(np.uint16))


def test_channels_of_a_pixel_are_adjacent_in_a_patch():
    (theirs,) = numbered([(5, 3, 2, 2)])
    (ours,) = PatchConvolution((2, 2)).to_parameters((theirs,), ((12, 5),))
    image = np.arange(12.0).reshape(2, 2, 3)
    convolved = np.einsum("oihw,hwi->o", theirs.astype(float), image)
    np.testing.assert_array_equal(image.ravel() @ ours, convolved)


def test_fused_groups_are_split_by_key_value_head():
    groups, each, head = 2, 2, 3
    (theirs,) = numbered([(groups * (each + 2) * head, 1)])
    query, key, value = Fused(axis=0, groups=groups).to_parameters((theirs,), ((1, 12), (1, 6), (1, 6)))
    apart = theirs.reshape(groups, each + 2, head)
    np.testing.assert_array_equal(query.ravel(), apart[:, :each].ravel())
    np.testing.assert_array_equal(key.ravel(), apart[:, -2].ravel())
    np.testing.assert_array_equal(value.ravel(), apart[:, -1].ravel())


@pytest.mark.parametrize(
    ("layout", "ours"),
    [
        (LINEAR, ((2,),)),
        (Reshaped((1, 4)), ((3,),)),
        (PatchConvolution((2, 2)), ((6, 5),)),
        (Fused(axis=0), ((2, 3), (4, 3))),
        (Fused(axis=0, groups=2), ((2, 3), (2, 4))),
    ],
    ids=repr,
)
def test_shapes_that_do_not_fit_are_refused(layout, ours):
    with pytest.raises(ValueError, match="dimension|numbers|windows"):
        layout.published_shapes(ours)
