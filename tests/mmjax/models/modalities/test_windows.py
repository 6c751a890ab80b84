"""Windows of an image: their numbers, which layers attend within them, and independence of the images of a row."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from configs.architectures import BackboneConfig, ModelConfig, VisionConfig
from configs.attention.attention_windows import AttentionWindows
from mmjax.models.layers.layer_kinds import inputs_of_layer
from mmjax.models.modalities.vision import PatchBlock
from mmjax.models.modalities.windows import window_segments
from mmjax.models.model import model_modules, run_module
from mmjax.models.structure.parameters import init_module_parameters
from pallas_kernels.packed_attention import make_segment_mask, packed_attention

SIDE, MERGE = 4, 2
VISION = VisionConfig(
    width=16, depth=3, heads=2, ffn=24, patch=2, merge=MERGE, windows=AttentionWindows(SIDE, full_layers=(1,))
)


def cells(rows, columns):
    """(row, column) of the patches of an image in raster order of its cells."""
    grid = np.stack(np.indices((rows, columns)), axis=-1).reshape(rows // MERGE, MERGE, columns // MERGE, MERGE, 2)
    return grid.swapaxes(1, 2).reshape(-1, 2)


def row_of(sizes, padding=0):
    """Positions and segments of images of these numbers of patch rows and columns, and of padding."""
    positions = np.concatenate([*(cells(*size) for size in sizes), np.zeros((padding, 2), int)])
    segments = np.repeat([*range(1, len(sizes) + 1), 0], [*(rows * columns for rows, columns in sizes), padding])
    return jnp.asarray(positions[None], jnp.int32), jnp.asarray(segments[None], jnp.int32)


SIZES = st.lists(
    st.tuples(st.integers(1, 5), st.integers(1, 5)).map(lambda size: (2 * size[0], 2 * size[1])), min_size=1, max_size=5
)
window_numbers = jax.jit(lambda positions, segments: window_segments(positions, segments, SIDE, MERGE))
PATCHES = 512
"""Of a row: one length for all examples, because each other one is compiled."""


@given(SIZES.map(lambda sizes: (sizes, PATCHES - sum(rows * columns for rows, columns in sizes))))
@example(([(4, 10), (2, 2)], 0))
@settings(max_examples=15, deadline=None)
def test_patches_have_one_number_where_they_share_a_window_of_an_image(sizes_and_padding):
    sizes, padding = sizes_and_padding
    positions, segments = row_of(sizes, padding)
    numbers = np.asarray(window_numbers(positions, segments))[0]
    images = np.asarray(segments)[0]
    windows = np.where(images[:, None] > 0, np.asarray(positions)[0] // SIDE, 0)
    _, keys = np.unique(np.column_stack([images, windows]), axis=0, return_inverse=True)
    np.testing.assert_array_equal(numbers[:, None] == numbers, keys[:, None] == keys)
    np.testing.assert_array_equal(numbers > 0, images > 0)
    starts = [numbers[images == image] for image in range(1, len(sizes) + 1)]
    assert all(before.max() < after.min() for before, after in zip(starts, starts[1:], strict=False))


@functools.cache
def inputs():
    positions, segments = row_of(((8, 12), (4, 4), (10, 6)), padding=4)
    return PatchBlock.shared_inputs(VISION, {"positions": positions, "segments": segments})


@pytest.mark.parametrize("layer", range(3))
def test_a_traced_layer_reads_the_mask_that_its_number_reads(layer):
    expected = inputs_of_layer(inputs(), VISION.kind_of_layers, layer)
    traced = jax.jit(lambda shared, number: inputs_of_layer(shared, VISION.kind_of_layers, number))(inputs(), layer)
    jax.tree.map(np.testing.assert_array_equal, traced, expected)
    segments = np.asarray(expected.mask.queries.segments)[0]
    assert len(set(segments[segments > 0])) == (3 if layer == 1 else 6 + 1 + 6)


def test_blocked_attention_within_windows_equals_dense_attention():
    """Windows of a row of patches alternate, so that segments are not in order; that changes no result."""
    positions, segments = row_of(((16, 24), (12, 8)), padding=32)
    windows = window_numbers(positions, segments)
    query, key, value = (jax.random.normal(jax.random.key(n), (1, windows.shape[1], 2, 8)) for n in range(3))
    mask = make_segment_mask(windows, ordered=False, block=16)
    attend = jax.jit(packed_attention, static_argnames="implementation")
    blocked, dense = (attend(query, key, value, mask, implementation=how) for how in ("blocked", "dense"))
    np.testing.assert_allclose(blocked, dense, atol=1e-5)
    with pytest.raises(ValueError, match="out of order"):
        make_segment_mask(windows)


BACKBONE = BackboneConfig(width=16, heads=2, kv_heads=2, ffn=16)


def tokens(config, sizes, image, padding=0):
    """Backbone tokens of an image whose pixels are the same in every row."""
    module = model_modules(ModelConfig((config,), BACKBONE, ()))[0]
    positions, segments = row_of(sizes, padding)
    in_image = np.asarray(segments)[0] == image
    patches = np.random.default_rng(1).normal(size=(1, len(in_image), config.patch_width)).astype(np.float32)
    patches[0, in_image] = np.random.default_rng(2).normal(size=(in_image.sum(), config.patch_width))
    batch = {"patches": jnp.asarray(patches), "positions": positions, "segments": segments}
    parameters = jax.tree.map(jnp.asarray, init_module_parameters(0, module))
    run = jax.jit(lambda parameters, batch: run_module(module, parameters, {}, batch).activations["backbone"])
    return np.asarray(run(parameters, batch))[0][in_image[:: MERGE**2]]


def test_an_image_has_the_same_tokens_alone_and_in_a_row_and_windows_matter():
    alone = tokens(VISION, [(8, 12)], 1)
    np.testing.assert_allclose(tokens(VISION, [(4, 4), (8, 12), (6, 6)], 2, padding=4), alone, rtol=1e-4, atol=1e-6)
    everywhere = dataclasses.replace(VISION, windows=None)
    assert np.abs(tokens(everywhere, [(8, 12)], 1) - alone).max() > 1e-4


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"merge": 3}, "AttentionWindows.side = 4; it must be a multiple of merge = 3"),
        ({"depth": 1}, r"AttentionWindows.full_layers = \(1,\); the last of the 1 layers is 0"),
        ({"class_token": True}, "a class token and registers are in no window"),
        ({"registers": 4}, "a class token and registers are in no window"),
    ],
)
def test_windows_that_do_not_fit_the_encoder_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(VISION, **fields)


@pytest.mark.parametrize(("layers", "side"), [((2, 1), 4), ((-1,), 4), ((), 0)])
def test_invalid_windows_are_refused(layers, side):
    with pytest.raises(ValueError, match="AttentionWindows"):
        AttentionWindows(side, layers)
