"""Tilings and layouts of the files that transformers' processors save: the images equal the processor's."""

import json

import numpy as np
import pytest

from data.errors import DataError
from data.media.tilings.any_resolution import AnyResolution
from data.media.tilings.canvas_tiling import CanvasTiling
from data.media.tilings.pan_and_scan import PanAndScan
from data.media.tilings.patch_count import PatchCount
from data.media.tilings.pixel_range import PixelRange
from data.media.tilings.square_image import SquareImage
from data.media.tilings.tiling import DynamicTiling
from data.text.image_layout import ImageLayout
from data.text.published_processor import LAYOUTS, published_layout, published_tiling
from tests.data.media.test_published_processors import published
from tests.data.real_data import photographs

pytestmark = pytest.mark.parity

transformers = pytest.importorskip("transformers")

SQUARE = {"height": 56, "width": 56}
PAN = {
    "do_pan_and_scan": True,
    "pan_and_scan_min_crop_size": 50,
    "pan_and_scan_max_num_crops": 3,
    "pan_and_scan_min_ratio_to_activate": 1.2,
}
PROCESSORS = {
    "CLIP": (14, lambda: published("clip", "CLIP", size={"shortest_edge": 56}, crop_size=SQUARE)),
    "Siglip": (14, lambda: published("siglip", "Siglip", size=SQUARE)),
    "Llava": (14, lambda: published("llava", "Llava", do_pad=True, size=SQUARE, crop_size=SQUARE)),
    "Gemma3": (14, lambda: published("gemma3", "Gemma3", size=SQUARE)),
    "Gemma3, cut": (14, lambda: published("gemma3", "Gemma3", size=SQUARE, **PAN)),
    "Pixtral": (16, lambda: published("pixtral", "Pixtral", size={"longest_edge": 100}, do_pad=False)),
    "InternVL": (14, lambda: published("got_ocr2", "GotOcr2", size=SQUARE, crop_to_patches=True, max_patches=6)),
    "LlavaNext": (
        14,
        lambda: published(
            "llava_next",
            "LlavaNext",
            size={"shortest_edge": 56},
            crop_size=SQUARE,
            image_grid_pinpoints=[[56, 112], [112, 56], [112, 112]],
        ),
    ),
    "LlavaOnevision": (
        14,
        lambda: published(
            "llava_onevision", "LlavaOnevision", size=SQUARE, image_grid_pinpoints=[[56, 56], [56, 112], [112, 168]]
        ),
    ),
}


def saved(folder, values, section=False):
    file = "processor_config.json" if section else "preprocessor_config.json"
    (folder / file).write_text(json.dumps({"image_processor": values} if section else values))
    return folder


@pytest.mark.parametrize("name", PROCESSORS)
def test_images_equal_those_of_the_processor_that_wrote_the_file(name, tmp_path):
    cell_size, build = PROCESSORS[name]
    processor = build()
    processor.save_pretrained(tmp_path)
    tiling = published_tiling(tmp_path)
    mean, std = (np.float32(values)[:, None, None] for values in (processor.image_mean, processor.image_std))
    pixels = photographs()["china.jpg"][:130, :300].copy()
    expected = processor([pixels], return_tensors="np")["pixel_values"]
    expected = expected[0] if expected.ndim == 5 else expected
    images = tiling.cut_images(pixels, cell_size)
    actual = np.stack([(image.transpose(2, 0, 1).astype(np.float32) / 255 - mean) / std for image in images])
    np.testing.assert_allclose(actual, expected, atol=2e-6)
    assert published_layout(tmp_path) == LAYOUTS.get(type(processor).__name__.removesuffix("Pil"), ImageLayout())


FILES = [
    (
        {"image_processor_type": "Qwen2VLImageProcessorFast", "min_pixels": 3136, "max_pixels": 12845056},
        PixelRange(3136, 12845056),
    ),
    (
        {"image_processor_type": "Qwen2VLImageProcessor", "size": {"shortest_edge": 65536, "longest_edge": 16777216}},
        PixelRange(65536, 16777216),
    ),
    (
        {"image_processor_type": "Llama4ImageProcessorFast", "size": {"height": 336, "width": 336}, "max_patches": 16}
        | {"resample": 2, "resize_to_max_canvas": False},
        CanvasTiling(),
    ),
    (
        {"image_processor_type": "Gemma3ImageProcessor", "size": {"height": 896, "width": 896}, "resample": 2}
        | {"do_pan_and_scan": None},
        SquareImage(side=896, resampling="bilinear"),
    ),
    (
        {"image_processor_type": "GotOcr2ImageProcessorFast", "size": {"height": 448, "width": 448}}
        | {"crop_to_patches": True, "min_patches": 1, "max_patches": 12},
        DynamicTiling(),
    ),
    ({"image_processor_type": "Siglip2ImageProcessorFast", "max_num_patches": 256, "resample": 2}, PatchCount()),
    ({"feature_extractor_type": "CLIPFeatureExtractor"}, None),
]


@pytest.mark.parametrize(("values", "expected"), FILES)
@pytest.mark.parametrize("section", [False, True])
def test_values_of_published_files(values, expected, section, tmp_path):
    folder = saved(tmp_path, values, section)
    if expected is None:
        with pytest.raises(DataError, match="image_processor_type is 'CLIPFeatureExtractor'"):
            published_tiling(folder)
    else:
        assert published_tiling(folder) == expected


def test_llava_onevision_uses_no_more_tiles_than_it_interpolates_to(tmp_path):
    values = json.loads(published("llava_onevision", "LlavaOnevision").to_json_string())
    assert published_tiling(saved(tmp_path, values)) == AnyResolution()


def test_gemma_3_with_pan_and_scan_has_the_published_defaults(tmp_path):
    values = {"image_processor_type": "Gemma3ImageProcessor", "size": {"height": 896, "width": 896}, "resample": 2}
    values |= {**PAN, "pan_and_scan_min_crop_size": 256, "pan_and_scan_max_num_crops": 4}
    assert published_tiling(saved(tmp_path, values)) == PanAndScan()


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"image_processor_type": "FuyuImageProcessor"}, "image_processor_type is 'FuyuImageProcessor'"),
        ({"image_processor_type": "SiglipImageProcessor"}, "is missing or not of its kind: KeyError"),
        (
            {"image_processor_type": "BitImageProcessor", "size": {"shortest_edge": 256}, "crop_size": 224}
            | {"do_center_crop": True},
            "crop_size is 224 and size",
        ),
        ({"image_processor_type": "SiglipImageProcessor", "size": {"height": 9, "width": 8}}, "only squares"),
        ({"image_processor_type": "CLIPImageProcessor", "size": {"shortest_edge": 8}}, "would not be squares"),
        (
            {"image_processor_type": "SiglipImageProcessor", "size": {"height": 8, "width": 8}, "resample": 5},
            "resample is 5",
        ),
        (
            {"image_processor_type": "LlavaNextImageProcessor", "size": 56, "image_grid_pinpoints": [[56, 100]]},
            "image_grid_pinpoints are no multiples of size, 56",
        ),
        ({}, "has no processor_config.json or preprocessor_config.json that says"),
    ],
)
def test_values_without_a_tiling_are_refused(values, said, tmp_path):
    with pytest.raises(DataError, match=said):
        published_tiling(saved(tmp_path, values))
