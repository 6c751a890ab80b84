import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.errors import DataError
from data.media.patches import (
    fitted_size,
    patchify,
    resize_to_fit,
    resize_to_square,
    to_uint8,
    to_unit_range,
    unpatchify,
)


def noise(height, width, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)


def test_scaling_is_exact_on_bytes_and_clips():
    every = np.arange(256, dtype=np.uint8)
    assert to_unit_range(every).dtype == np.float32
    assert (to_unit_range(every).min(), to_unit_range(every).max()) == (-1, 1)
    np.testing.assert_array_equal(to_uint8(to_unit_range(every)), every)
    np.testing.assert_array_equal(to_uint8(np.array([-3.0, 3.0])), [0, 255])


@pytest.mark.parametrize(
    ("size", "unit", "most", "expected"),
    [
        ((64, 64), 16, 16, (64, 64)),
        ((65, 79), 16, 16, (64, 64)),
        ((128, 128), 16, 16, (64, 64)),
        ((100, 50), 16, 100, (96, 48)),
        ((256, 64), 16, 16, (128, 32)),
        ((3, 3), 16, 16, (16, 16)),
        ((3, 1000), 16, 16, (16, 256)),
    ],
)
def test_fitted_size(size, unit, most, expected):
    assert fitted_size(*size, unit, most) == expected


@given(st.integers(1, 300), st.integers(1, 300), st.integers(1, 20), st.integers(1, 40))
@settings(max_examples=100, deadline=None)
def test_fitted_size_is_within_its_limits(height, width, unit, most):
    fitted = fitted_size(height, width, unit, most)
    assert all(side % unit == 0 and side >= unit for side in fitted)
    assert fitted[0] * fitted[1] <= most * unit * unit
    assert all(new <= max(old, unit) for new, old in zip(fitted, (height, width), strict=True))


def test_resize_to_fit_keeps_fitting_images_and_scales_others():
    image = noise(32, 48)
    assert resize_to_fit(image, 16, 6) is image
    assert resize_to_fit(image, 16, 4).shape == (16, 32, 3)
    flat = np.full((40, 40, 3), 7, np.uint8)
    np.testing.assert_array_equal(resize_to_fit(flat, 16, 9), np.full((32, 32, 3), 7, np.uint8))


def test_patches_of_a_cell_are_adjacent():
    image = noise(8, 12)
    patches, positions = patchify(image, patch=2, merge=2)
    expected = [
        (2 * cell_row + row, 2 * cell_column + column)
        for cell_row in range(2)
        for cell_column in range(3)
        for row in range(2)
        for column in range(2)
    ]
    assert positions.tolist() == [list(position) for position in expected]
    assert (patches.dtype, positions.dtype, patches.shape) == (np.float32, np.int32, (24, 12))
    for patch, (row, column) in zip(patches, expected, strict=True):
        np.testing.assert_array_equal(
            to_uint8(patch), image[2 * row : 2 * row + 2, 2 * column : 2 * column + 2].ravel()
        )


@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 4), st.integers(1, 4))
@settings(max_examples=40, deadline=None)
def test_unpatchify_inverts_patchify(patch, merge, rows, columns):
    image = noise(rows * patch * merge, columns * patch * merge)
    np.testing.assert_array_equal(unpatchify(*patchify(image, patch, merge), patch), image)


def test_sides_that_are_no_multiple_of_the_cell_are_refused():
    with pytest.raises(DataError, match="12x8 pixels: sides must be multiples of 8"):
        patchify(noise(12, 8), patch=4, merge=2)


def test_generator_targets_are_means_over_the_pixels_they_cover():
    image = noise(4, 4)
    target = resize_to_square(image, 2)
    assert (target.shape, target.dtype) == ((2, 2, 3), np.float32)
    # Within one step of a byte: Pillow rounds once a direction.
    means = image.reshape(2, 2, 2, 2, 3).astype(np.float64).mean(axis=(1, 3))
    np.testing.assert_allclose(target, means / 127.5 - 1, atol=1.01 / 127.5)
