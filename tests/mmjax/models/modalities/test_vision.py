"""The vision encoder: positions, independence of the images of a row, and the pixel shuffle."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs.architectures import ModelConfig
from configs.attention.vision_rope import VisionRope
from data.data_config import RowCapacity
from data.media.patches import patchify
from data.packing.global_batch import build_global_batch
from data.packing.rows.packed_rows import pack_samples
from data.samples.image_format import image_item
from data.samples.sample_format import SampleFormat
from data.samples.sample_metadata import SampleMetadata
from data.samples.token_layout import lay_out_tokens
from data.text.word_tokenizer import IMAGE
from mmjax.models.layers.positions import sinusoidal_positions_2d
from mmjax.models.modalities.projectors import build_projector
from mmjax.models.modalities.vision import PatchBlock
from mmjax.models.model import model_modules, run_module
from mmjax.models.structure.parameters import init_module_parameters
from sharding.axes import Axes
from tests.tiny_model import BACKBONE, VISION


def test_every_patch_position_of_a_large_image_has_a_distinct_embedding():
    places = np.stack(np.meshgrid(np.arange(40), np.arange(40), indexing="ij"), axis=-1).reshape(1, -1, 2)
    waves = np.asarray(sinusoidal_positions_2d(jnp.asarray(places), 32))[0]
    distances = np.linalg.norm(waves[:, None] - waves[None], axis=-1) + 9 * np.eye(len(waves))
    assert distances.min() > 0.05
    np.testing.assert_allclose(np.abs(waves).max(), 1, atol=1e-2)


def test_rows_and_columns_use_half_of_the_width_each():
    waves = np.asarray(sinusoidal_positions_2d(jnp.array([[[3, 5], [3, 6], [4, 5]]]), 16))[0]
    np.testing.assert_array_equal(waves[0, :8], waves[1, :8])
    np.testing.assert_array_equal(waves[0, 8:], waves[2, 8:])
    np.testing.assert_array_equal(
        waves[0, :8], np.asarray(sinusoidal_positions_2d(jnp.array([[[5, 3]]]), 16))[0, 0, 8:]
    )


def image(seed, height, width):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3)).astype(np.uint8)


def test_the_pixel_shuffle_joins_the_patches_of_a_square():
    """With patches as activations, a backbone token is the merge x merge neighbourhood of its square."""
    picture = image(0, 8, 12)
    patches, positions = patchify(picture, VISION.patch, VISION.merge)
    seen = []
    projector = build_projector(VISION, BACKBONE)
    projector.mlp = lambda merged, axes: seen.append(merged) or merged
    projector(jnp.asarray(patches)[None], {}, Axes())
    merged = np.asarray(seen[0])[0].reshape(2 * 3, VISION.merge**2, -1)
    side = VISION.patch * VISION.merge
    for token, (row, column) in enumerate(np.ndindex(2, 3)):
        cell = picture[row * side : (row + 1) * side, column * side : (column + 1) * side]
        pixels = np.rint((merged[token] + 1) * 127.5).astype(np.uint8)
        assert sorted(pixels.ravel().tolist()) == sorted(cell.ravel().tolist())
        np.testing.assert_array_equal(positions[token * 4] // VISION.merge, [row, column])


PLACES = 24
WITH_CLASS_TOKEN = dataclasses.replace(
    VISION,
    class_token=True,
    registers=2,
    positions="learned",
    grid=3,
    input_norm=True,
    rope=VisionRope(100.0, grid=5),
    qk_norm="head",
)
PAIRS_OF_FRAMES = dataclasses.replace(VISION, temporal_patch=2)
NORMS_BEHIND = dataclasses.replace(VISION, norms="after", rope=VisionRope(100.0), layer_scale=0.5)


@functools.cache
def encoder(config):
    """Projects the patches of a row with a projector whose parameters are all different."""
    module = model_modules(ModelConfig((config,), BACKBONE, ()))[0]
    leaves, tree = jax.tree.flatten(init_module_parameters(0, module))
    random = np.random.default_rng(0)
    moved = [jnp.asarray(leaf + random.normal(0, 0.1, leaf.shape).astype(np.float32)) for leaf in leaves]
    weights = jax.tree.unflatten(tree, moved)
    return jax.jit(lambda batch: run_module(module, weights, {}, batch).activations[BACKBONE.name])


def encode(config, *pictures):
    """Backbone tokens of every image of a row."""
    form = SampleFormat.for_model(ModelConfig((config,), BACKBONE, ()), {"patches": PLACES})
    items = [image_item(lambda seen=seen: seen, seen.shape[:2], form.encoder_formats["patches"]) for seen in pictures]
    tokens = [form.encoder_formats["patches"].token_count(item.length) for item in items]
    outline = SampleMetadata(
        kind="seen",
        layout=lay_out_tokens([IMAGE] * sum(tokens), [], [()], {"patches": IMAGE}),
        sample_format=form,
        items=items,
    )
    capacity = RowCapacity(tokens=sum(tokens), lengths={"patches": PLACES}, images=0, samples=1)
    rows = pack_samples([outline.load(0)], 1, capacity, form)
    arrays = build_global_batch(rows, ModelConfig((config,), BACKBONE, ()), form).arrays
    out = np.asarray(encoder(config)(jax.tree.map(jnp.asarray, arrays[config.name])))[0]
    return np.split(out[arrays[BACKBONE.name]["vision_index"][0]], np.cumsum(tokens)[:-1])


@pytest.mark.parametrize(
    "config",
    [VISION, WITH_CLASS_TOKEN, NORMS_BEHIND, PAIRS_OF_FRAMES],
    ids=["plain", "class token", "norms behind", "pairs of frames"],
)
def test_tokens_of_an_image_do_not_depend_on_the_rest_of_the_row(config):
    first, second = image(0, 8, 4), image(1, 4, 4)
    (alone,) = encode(config, first)
    assert alone.shape == (2, BACKBONE.width)
    for packed, index in ((encode(config, second, first), 1), (encode(config, first, second), 0)):
        np.testing.assert_allclose(packed[index], alone, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(packed[1 - index], encode(config, second)[0], rtol=1e-4, atol=1e-5)
    assert np.max(np.abs(encode(config, image(2, 8, 4))[0] - alone)) > 1e-2


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"norms": "after", "parallel_block": True}, "norms must be 'before'"),
        ({"rope": VisionRope(), "heads": 4}, "head width 2; 2-D rotary positions need"),
        ({"positions": "rotary"}, "positions is 'rotary'; choose from none, sine, learned"),
    ],
)
def test_contradictory_vision_configurations_are_refused(changed, said):
    with pytest.raises(ValueError, match=said):
        dataclasses.replace(VISION, **changed)


def test_rotary_positions_are_scaled_to_the_pretraining_grid():
    """The first row and column keep their positions, the last come near the end of the grid."""
    positions = jnp.asarray([[[0, 0], [3, 1], [-1, -1]]])
    prepared = [
        PatchBlock.shared_inputs(
            dataclasses.replace(VISION, rope=VisionRope(100.0, grid=grid)),
            {"positions": positions, "segments": jnp.asarray([[1, 1, 1]])},
        )[1]
        for grid in (0, 4, 8)
    ]
    plain, rows_same, doubled = ([np.asarray(array)[0, :, 0] for array in rotation[:2]] for rotation in prepared)
    half = VISION.head_width // 4
    angles = [np.arctan2(sines, cosines) for cosines, sines in (plain, rows_same, doubled)]
    np.testing.assert_allclose(angles[1][1, :half], angles[0][1, :half], atol=1e-6)  # 4 rows, as the grid
    np.testing.assert_allclose(angles[1][1, half], 2.0, atol=1e-6)  # 2 columns: the second is the grid's third
    np.testing.assert_allclose(angles[2][1, half], 4.0 - 2 * np.pi, atol=1e-6)
    for turned in angles:
        np.testing.assert_array_equal(turned[[0, 2]], 0)


def test_centred_coordinates_reach_from_one_side_of_the_image_to_the_other():
    """Centres of 4 rows are at -3/4, -1/4, 1/4 and 3/4 of half the image, times 2π; a class token does not rotate."""
    positions = jnp.asarray([[[-1, -1], [0, 0], [1, 0], [2, 0], [3, 1]]])
    rope = VisionRope(100.0, coordinates="centred")
    batch = {"positions": positions, "segments": jnp.ones((1, 5), jnp.int32)}
    cosines, sines, *_ = PatchBlock.shared_inputs(dataclasses.replace(VISION, rope=rope), batch).rotary
    angles = np.array([0, -1.5, -0.5, 0.5, 1.5]) * np.pi
    np.testing.assert_allclose(np.asarray(cosines)[0, :, 0, 0], np.cos(angles), atol=1e-6)
    np.testing.assert_allclose(np.asarray(sines)[0, :, 0, 0], np.sin(angles), atol=1e-6)
    np.testing.assert_allclose(np.asarray(cosines)[0, 1:, 0, VISION.head_width // 4], -1, atol=1e-6)
