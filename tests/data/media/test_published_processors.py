"""Encoder images equal those of transformers' processors, on photographs and parts of them of many shapes."""

import importlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.errors import DataError
from data.media.patches import patchify
from data.media.tilings.any_resolution import AnyResolution
from data.media.tilings.canvas_tiling import CanvasTiling
from data.media.tilings.longest_edge import LongestEdge
from data.media.tilings.pan_and_scan import PanAndScan
from data.media.tilings.patch_count import PatchCount
from data.media.tilings.square_image import SquareImage
from data.media.tilings.tiling import DynamicTiling, ImageTiling, PlacedTiling
from data.text.prompt_format import PromptFormat
from tests.data.real_data import photographs

pytestmark = pytest.mark.parity

pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

SHAPES = ((427, 640), (30, 41), (60, 300), (364, 190), (100, 101), (427, 333))
NEXT_GRIDS = ((1, 2), (2, 1), (2, 2), (3, 1), (1, 3))


def parts():
    """Photographs, and parts of them of other shapes."""
    for name, photograph in photographs().items():
        for height, width in SHAPES:
            yield f"{name} {height}x{width}", photograph[:height, -width:].copy()


def pinpoints(grids, tile):
    return [[rows * tile, columns * tile] for rows, columns in grids]


def published(model, name, **options):
    module = importlib.import_module(f"transformers.models.{model}.image_processing_pil_{model}")
    return getattr(module, f"{name}ImageProcessorPil")(**options)


ONE_VISION_GRIDS = tuple((rows, columns) for rows in (1, 2, 3) for columns in (1, 2, 3))
# The tiling, the side of its cells, and the published processor.
CASES = {
    "clip": (
        SquareImage(side=56, fit="crop"),
        14,
        lambda: published("clip", "CLIP", size={"shortest_edge": 56}, crop_size=56),
    ),
    "siglip": (SquareImage(side=56), 14, lambda: published("siglip", "Siglip", size={"height": 56, "width": 56})),
    "llava, padded": (
        SquareImage(side=56, fit="pad", padding=(122, 116, 104)),
        14,
        lambda: published("llava", "Llava", do_pad=True, size={"height": 56, "width": 56}, crop_size=56),
    ),
    "gemma3": (
        SquareImage(side=56, resampling="bilinear"),
        14,
        lambda: published("gemma3", "Gemma3", size={"height": 56, "width": 56}),
    ),
    "gemma3, pan and scan": (
        PanAndScan(side=56, min_crop=50, max_crops=3),
        14,
        lambda: published(
            "gemma3",
            "Gemma3",
            size={"height": 56, "width": 56},
            do_pan_and_scan=True,
            pan_and_scan_min_crop_size=50,
            pan_and_scan_max_num_crops=3,
            pan_and_scan_min_ratio_to_activate=1.2,
        ),
    ),
    "pixtral": (
        LongestEdge(256),
        16,
        lambda: published("pixtral", "Pixtral", size={"longest_edge": 256}, do_pad=False),
    ),
    "internvl": (
        DynamicTiling(tile_size=56, max_tiles=6),
        14,
        lambda: published(
            "got_ocr2", "GotOcr2", size={"height": 56, "width": 56}, crop_to_patches=True, min_patches=1, max_patches=6
        ),
    ),
    "llava_next": (
        AnyResolution(tile_size=56, grids=NEXT_GRIDS),
        14,
        lambda: published(
            "llava_next",
            "LlavaNext",
            size={"shortest_edge": 56},
            crop_size=56,
            image_grid_pinpoints=pinpoints(NEXT_GRIDS, 56),
        ),
    ),
    "llava_onevision": (
        AnyResolution(tile_size=56),
        14,
        lambda: published(
            "llava_onevision",
            "LlavaOnevision",
            size={"height": 56, "width": 56},
            image_grid_pinpoints=pinpoints([grid for grid in AnyResolution().grids if grid[0] * grid[1] <= 9], 56),
        ),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_images_equal_those_of_the_published_processor(name):
    tiling, cell_size, build = CASES[name]
    processor = build()
    mean, std = (np.float32(values)[:, None, None] for values in (processor.image_mean, processor.image_std))
    assert isinstance(tiling, ImageTiling)
    for where, pixels in parts():
        expected = processor([pixels], return_tensors="np")["pixel_values"]
        expected = expected[0] if expected.ndim == 5 else expected
        images = tiling.cut_images(pixels, cell_size)
        assert [image.shape[:2] for image in images] == tiling.image_sizes(*pixels.shape[:2], cell_size), where
        actual = np.stack([(image.transpose(2, 0, 1).astype(np.float32) / 255 - mean) / std for image in images])
        # A grey level is 0.015 and more.
        np.testing.assert_allclose(actual, expected, atol=2e-6, err_msg=where)


def test_patches_of_siglip_2_equal_those_of_its_processor():
    for limit in (256, 40):
        processor = published("siglip2", "Siglip2", max_num_patches=limit, patch_size=16)
        for where, pixels in parts():
            expected = processor([pixels], return_tensors="np")
            rows, columns = expected["spatial_shapes"][0].tolist()
            (image,) = PatchCount(limit).cut_images(pixels, 16)
            assert image.shape[:2] == (rows * 16, columns * 16), where
            actual, _ = patchify(image, 16, 1)
            shown = expected["pixel_values"][0][: rows * columns]
            np.testing.assert_allclose(actual, shown, atol=2e-6, err_msg=where)


@given(st.integers(1, 3000), st.integers(1, 3000), st.sampled_from([16, 14]), st.sampled_from([1, 40, 256, 1024]))
@settings(max_examples=200, deadline=None)
def test_sizes_equal_siglip_2s(height, width, patch, limit):
    from transformers.models.siglip2 import image_processing_pil_siglip2 as processing

    expected = processing.get_image_size_for_max_num_patches(height, width, patch, limit)
    assert PatchCount(limit).image_sizes(height, width, patch) == [expected]


def test_tiles_of_llama_4_equal_those_of_its_processor():
    """Its processor resizes with another program, whose levels may differ by one, and rounds to bfloat16."""
    pytest.importorskip("torchvision")
    from transformers.models.llama4.image_processing_llama4 import Llama4ImageProcessor

    for enlarge in (False, True):
        tiling = CanvasTiling(tile_size=56, max_tiles=7, enlarge=enlarge)
        processor = Llama4ImageProcessor(size={"height": 56, "width": 56}, max_patches=7, resize_to_max_canvas=enlarge)
        for where, pixels in parts():
            expected = processor([pixels], return_tensors="pt")
            images = tiling.cut_images(pixels, 14)
            assert tiling.grid(*pixels.shape[:2]) == tuple(expected["aspect_ratios"][0].tolist()), where
            actual = np.stack([image.transpose(2, 0, 1).astype(np.float32) / 127.5 - 1 for image in images])
            levels = (expected["pixel_values"].float().numpy() - actual) * 127.5
            assert np.abs(levels).max() < 2, where
            assert np.abs(levels).mean() < 0.5, where


@pytest.mark.parametrize("kind", [SquareImage(side=60), SquareImage(side=60, fit="crop"), AnyResolution(tile_size=60)])
def test_pixels_beyond_whole_cells_are_cut_off(kind):
    """As the convolution of SigLIP's tower leaves them: 384 pixels are 27 patches of 14, and 6 more."""
    for where, pixels in parts():
        whole = kind.cut_images(pixels, 1)
        cut = kind.cut_images(pixels, 14)
        assert [image.shape[:2] for image in cut] == kind.image_sizes(*pixels.shape[:2], 14) == [(56, 56)] * len(whole)
        for image, whole_image in zip(cut, whole, strict=True):
            np.testing.assert_array_equal(image, whole_image[:56, :56], err_msg=where)


@given(st.integers(1, 3000), st.integers(1, 3000), st.integers(1, 16), st.booleans())
@settings(max_examples=200, deadline=None)
def test_canvases_equal_those_of_llama_4(height, width, tiles, enlarge):
    torch = pytest.importorskip("torch")
    pytest.importorskip("torchvision")
    from transformers.image_utils import SizeDict
    from transformers.models.llama4 import image_processing_llama4 as processing

    possible = torch.tensor(processing.find_supported_resolutions(tiles, SizeDict(height=336, width=336)))
    expected = processing.get_best_fit((height, width), possible, resize_to_max_canvas=enlarge) // 336
    assert CanvasTiling(max_tiles=tiles, enlarge=enlarge).grid(height, width) == tuple(expected.tolist())


@given(st.integers(1, 3000), st.integers(1, 3000), st.sampled_from([NEXT_GRIDS, AnyResolution().grids]))
@settings(max_examples=200, deadline=None)
def test_grids_and_kept_cells_equal_those_of_llava(height, width, grids):
    torch = pytest.importorskip("torch")
    from transformers.image_processing_utils import select_best_resolution
    from transformers.models.llava_next.modeling_llava_next import unpad_image

    tiling = AnyResolution(tile_size=336, grids=grids, max_tiles=36)
    rows, columns = tiling.grid(height, width)
    assert select_best_resolution((height, width), pinpoints(grids, 336)) == (rows * 336, columns * 336)
    cells = 336 // 14
    numbers = torch.arange(rows * columns * cells**2).reshape(1, rows * cells, columns * cells)
    kept = unpad_image(numbers, (height, width))[0].numpy()
    whole, *tiles = tiling.tiles(height, width, 14)
    assert whole is None and isinstance(tiling, PlacedTiling)
    covered = np.zeros((rows, columns, cells, cells), bool)
    for tile in tiles:
        covered[tile.row, tile.column, slice(*tile.rows), slice(*tile.columns)] = True
    as_map = covered.swapaxes(1, 2).reshape(rows * cells, columns * cells)
    np.testing.assert_array_equal(np.flatnonzero(as_map), kept.ravel())


@given(st.integers(1, 4000), st.integers(1, 4000), st.integers(16, 2000))
@settings(max_examples=200, deadline=None)
def test_sizes_equal_pixtrals(height, width, longest):
    from transformers.models.pixtral import image_processing_pil_pixtral as processing

    if min(height, width) / max(height, width) * longest < 1:
        return  # a side of no pixel there
    pixels = np.broadcast_to(np.uint8(0), (3, height, width))
    expected = processing.get_resize_output_image_size(pixels, longest, 16, "channels_first")
    assert LongestEdge(longest).image_sizes(height, width, 16) == [tuple(expected)]


TILINGS = [tiling for tiling, *_ in CASES.values()] + [CanvasTiling(), PatchCount()]


@pytest.mark.parametrize("tiling", TILINGS, ids=lambda tiling: type(tiling).__name__)
def test_a_prompt_format_keeps_it(tiling):
    written = PromptFormat(tiling=tiling)
    assert PromptFormat.from_json(written.to_json()) == written


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: SquareImage(side=0), "SquareImage.side is 0"),
        (lambda: SquareImage(fit="fill"), "SquareImage.fit is 'fill'; choose one of stretch, crop, pad"),
        (lambda: SquareImage(resampling="box"), "SquareImage.resampling is 'box'"),
        (lambda: SquareImage(padding=(0, 0, 256)), "SquareImage.padding"),
        (lambda: SquareImage(side=12).image_sizes(9, 9, 14), "SquareImage.side = 12 is less than patch x merge = 14"),
        (lambda: PanAndScan(side=50).image_sizes(9, 9, 14), "PanAndScan.side = 50 must be a multiple"),
        (lambda: PatchCount(0), "PatchCount.max_cells is 0"),
        (lambda: LongestEdge(0), "LongestEdge.longest_edge is 0"),
        (lambda: PanAndScan(min_ratio=0.5), "PanAndScan.min_ratio is 0.5"),
        (lambda: AnyResolution(grids=((4, 4),)), "no grid of 1 to AnyResolution.max_tiles = 9"),
        (lambda: CanvasTiling(max_tiles=0), "CanvasTiling.max_tiles is 0"),
        (lambda: CanvasTiling().image_sizes(9, 9, 32), "CanvasTiling.tile_size = 336 must be a multiple"),
    ],
)
def test_invalid_tilings_are_refused(build, message):
    with pytest.raises(DataError, match=message):
        build()
