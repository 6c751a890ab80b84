import itertools
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from data.errors import DataError
from data.media.patches import patchify
from data.media.tilings.tiling import DynamicTiling, ImageTiling, NativeResolution
from tests.data.real_data import photographs

SIDES = st.integers(1, 3000)


def noise(height, width, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)


@pytest.mark.parametrize(
    ("height", "width", "grid"),
    [
        (448, 448, (1, 1)),
        (10, 10, (1, 1)),
        (600, 800, (3, 4)),  # 4:3 is exact
        (1080, 1920, (2, 4)),  # 1.78: 2 is nearer than 1.67, and the picture covers half of eight tiles
        (427, 640, (2, 3)),
        (3000, 100, (12, 1)),
        (100, 3000, (1, 12)),
        # Equally close: the largest grid of which the picture covers more than half.
        (633, 633, (1, 1)),
        (634, 634, (2, 2)),
        (951, 951, (3, 3)),
        (448, 896, (1, 2)),
        (634, 1268, (2, 4)),
    ],
)
def test_grids_are_those_of_internvl(height, width, grid):
    assert DynamicTiling().grid(height, width) == grid


@given(SIDES, SIDES, st.integers(1, 6), st.integers(0, 8), st.sampled_from([28, 448]))
@settings(max_examples=150, deadline=None)
def test_the_grid_has_the_closest_aspect_ratio(height, width, least, more, tile):
    tiles = DynamicTiling(tile_size=tile, min_tiles=least, max_tiles=least + more)
    rows, columns = tiles.grid(height, width)
    sides = range(1, tiles.max_tiles + 1)
    allowed = [(r, c) for r, c in itertools.product(sides, sides) if least <= r * c <= tiles.max_tiles]
    assert (rows, columns) in allowed

    def distance(grid):
        return abs(Fraction(width, height) - Fraction(grid[1], grid[0]))

    # The rule is published in floating point: equal to rounding is equal.
    nearest = min(map(distance, allowed))
    assert distance((rows, columns)) <= nearest + Fraction(1, 10**12) * max(1, Fraction(width, height))
    same_aspect = [grid for grid in allowed if grid[0] * columns == grid[1] * rows]
    covered = [grid for grid in same_aspect if 2 * height * width > tile * tile * grid[0] * grid[1]]
    if all(distance(grid) > nearest for grid in allowed if grid not in same_aspect):
        assert rows * columns == max((r * c for r, c in covered), default=min(r * c for r, c in same_aspect))


def test_a_thumbnail_follows_grids_of_more_than_one_tile():
    assert DynamicTiling().image_sizes(600, 800, 28) == [(448, 448)] * 13
    assert DynamicTiling().image_sizes(448, 448, 28) == [(448, 448)]
    assert DynamicTiling(thumbnail=False).image_sizes(600, 800, 28) == [(448, 448)] * 12


def test_tiles_are_the_resized_image_in_raster_order():
    image = noise(61, 92)
    *tiles, thumbnail = DynamicTiling(tile_size=28, max_tiles=6).cut_images(image, 14)
    whole = np.asarray(Image.fromarray(image).resize((84, 56), Image.Resampling.BICUBIC))
    assert len(tiles) == 6
    np.testing.assert_array_equal(np.vstack([np.hstack(tiles[:3]), np.hstack(tiles[3:])]), whole)
    np.testing.assert_array_equal(thumbnail, np.asarray(Image.fromarray(image).resize((28, 28))))


def test_photographs_are_cut_as_published():
    for photograph in photographs().values():
        images = DynamicTiling().cut_images(photograph, 28)
        assert [image.shape for image in images] == [(448, 448, 3)] * 7
        # 448 pixels at patch 14 and merge 2 are the 256 tokens a tile of InternVL.
        assert len(patchify(images[0], 14, 2)[0]) == 4 * 256
        (image,) = NativeResolution(256).cut_images(photograph, 28)
        assert image.shape == (364, 532, 3)
        assert np.abs(image.astype(float).mean() - photograph.mean()) < 1


@pytest.mark.parametrize(
    "tiling", [NativeResolution(6), DynamicTiling(tile_size=28), DynamicTiling(tile_size=42, min_tiles=2, max_tiles=5)]
)
@given(st.integers(1, 150), st.integers(1, 150), st.sampled_from([2, 14]))
@settings(max_examples=30, deadline=None)
def test_cut_images_have_the_announced_sizes(tiling, height, width, unit):
    assert isinstance(tiling, ImageTiling)
    images = tiling.cut_images(noise(height, width), unit)
    sizes = tiling.image_sizes(height, width, unit)
    assert [image.shape[:2] for image in images] == sizes
    assert all(image.dtype == np.uint8 and image.flags.c_contiguous for image in images)
    assert all(side % unit == 0 for size in sizes for side in size)


def test_native_resolution_limits_the_cells():
    assert NativeResolution(16).image_sizes(64, 64, 16) == [(64, 64)]
    assert NativeResolution(16).image_sizes(256, 64, 16) == [(128, 32)]


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: DynamicTiling(tile_size=0), "DynamicTiling.tile_size is 0"),
        (lambda: DynamicTiling(min_tiles=0), "DynamicTiling.min_tiles is 0"),
        (lambda: DynamicTiling(min_tiles=3, max_tiles=2), "min_tiles = 3 is above DynamicTiling.max_tiles = 2"),
        (lambda: NativeResolution(0), "NativeResolution.max_cells is 0"),
        (
            lambda: DynamicTiling().image_sizes(9, 9, 32 * 3),
            "DynamicTiling.tile_size = 448 must be a multiple of patch x merge = 96",
        ),
        (lambda: DynamicTiling().cut_images(noise(9, 9), 96), "DynamicTiling.tile_size = 448 must be a multiple"),
    ],
)
def test_invalid_tilings_are_refused(build, message):
    with pytest.raises(DataError, match=message):
        build()
