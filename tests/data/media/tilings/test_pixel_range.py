"""Qwen's size rule, and images, grids and patches equal to those of transformers' processor."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from configs.architectures import VisionConfig
from data.errors import DataError
from data.media.tilings.pixel_range import PixelRange
from data.media.tilings.tiling import ImageTiling
from data.samples.encoder_format import encoder_format
from data.samples.image_format import image_items
from data.text.prompt_format import PromptFormat
from tests.data.real_data import photographs

pytestmark = pytest.mark.parity

transformers = pytest.importorskip("transformers")

from transformers.models.qwen2_vl import image_processing_pil_qwen2_vl as published  # noqa: E402

# Patch, least and largest number of pixels, mean and deviation of pixels in [0, 1].
QWEN2_5_VL = (14, 56 * 56, 1280 * 28 * 28, published.OPENAI_CLIP_MEAN, published.OPENAI_CLIP_STD)
QWEN3_VL = (16, 65_536, 16_777_216, [0.5] * 3, [0.5] * 3)
SMALL = (14, 56 * 56, 40 * 28 * 28, published.OPENAI_CLIP_MEAN, published.OPENAI_CLIP_STD)


def crops():
    """Photographs, and parts of them that are rounded, scaled up and scaled down."""
    for name, photograph in photographs().items():
        for height, width in ((427, 640), (30, 41), (17, 300), (364, 252), (201, 640)):
            yield f"{name} {height}x{width}", np.ascontiguousarray(photograph[:height, -width:])


@pytest.mark.parametrize("settings", [QWEN2_5_VL, QWEN3_VL, SMALL], ids=["qwen2_5_vl", "qwen3_vl", "scaled down"])
def test_patches_grids_and_their_order_equal_the_published_processors(settings):
    patch, least, largest, mean, std = settings
    processor = published.Qwen2VLImageProcessorPil(
        patch_size=patch, min_pixels=least, max_pixels=largest, image_mean=mean, image_std=std
    )
    config = VisionConfig(
        patch=patch,
        temporal_patch=2,
        pixel_mean=tuple(2 * value - 1 for value in mean),
        pixel_std=tuple(2 * value for value in std),
    )
    patch_format = encoder_format(config, 10**6)
    for name, pixels in crops():
        expected = processor([pixels], return_tensors="np")
        (_, rows, columns), *_ = expected["image_grid_thw"]
        tiling = PixelRange(least, largest)
        (item,) = image_items(lambda seen=pixels: seen, pixels.shape[:2], patch_format, name, tiling)
        inputs = item.load()
        assert tuple(inputs.positions.max(axis=0) + 1) == (rows, columns), name
        assert item.length == len(inputs.values) == rows * columns, name
        assert item.length // patch_format.values_per_token == rows * columns // processor.merge_size**2, name
        assert tiling.image_sizes(*pixels.shape[:2], 2 * patch) == [(rows * patch, columns * patch)], name
        frames = inputs.values.reshape(-1, 2, patch, patch, 3)
        normalised = (frames - np.float32(config.pixel_mean)) / np.float32(config.pixel_std)
        ours = normalised.transpose(0, 4, 1, 2, 3).reshape(len(frames), -1)
        # A grey level is 0.015 and more; equal levels differ by the rounding of the normalisation.
        np.testing.assert_allclose(ours, expected["pixel_values"], atol=2e-6, err_msg=name)


@given(st.integers(1, 4000), st.integers(1, 4000), st.sampled_from([28, 32]), st.sampled_from([40, 1280]))
@example(70, 70, 28, 40)  # 2.5 cells are rounded to an even number
@settings(max_examples=300, deadline=None)
def test_sizes_equal_the_published_rule(height, width, cell_size, cells):
    if max(height, width) > 200 * min(height, width):
        return
    tiling = PixelRange(4 * cell_size**2, cells * cell_size**2)
    expected = published.smart_resize(height, width, cell_size, tiling.min_pixels, tiling.max_pixels)
    assert tiling.image_sizes(height, width, cell_size) == [expected]


@given(st.integers(1, 4000), st.integers(1, 4000), st.sampled_from([16, 28]))
@settings(max_examples=100, deadline=None)
def test_every_size_is_of_whole_cells(height, width, cell_size):
    ((rows, columns),) = PixelRange(1, 10**5).image_sizes(height, width, cell_size)
    assert min(rows, columns) >= cell_size and rows % cell_size == columns % cell_size == 0


def test_an_image_of_a_right_size_is_not_changed():
    pixels = np.random.default_rng(0).integers(0, 256, (56, 84, 3), np.uint8)
    (image,) = PixelRange().cut_images(pixels, 28)
    assert image is pixels
    assert isinstance(PixelRange(), ImageTiling)


def test_a_prompt_format_keeps_it():
    written = PromptFormat(tiling=PixelRange(3136, 10**6))
    assert PromptFormat.from_json(written.to_json()) == written


@pytest.mark.parametrize("limits", [(0, 10), (20, 10)])
def test_limits_that_hold_no_image_are_refused(limits):
    with pytest.raises(DataError, match=f"PixelRange.min_pixels = {limits[0]}"):
        PixelRange(*limits)
