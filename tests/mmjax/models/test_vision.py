"""The encoder: positions, images that do not see each other, and a pixel shuffle in the data's order."""

import jax
import jax.numpy as jnp
import numpy as np

from data.images import patchify
from mmjax.models.parameters import initial_module
from mmjax.models.pieces import model_modules
from mmjax.models.positions import plane_waves
from mmjax.models.projector import build_projector
from mmjax.models.whole import run_module
from sharding.axes import Axes
from tests.tiny import BACKBONE, VISION, tiny_model


def test_every_place_of_a_large_image_has_a_position_of_its_own():
    places = np.stack(np.meshgrid(np.arange(40), np.arange(40), indexing="ij"), axis=-1).reshape(1, -1, 2)
    waves = np.asarray(plane_waves(jnp.asarray(places), 32))[0]
    distances = np.linalg.norm(waves[:, None] - waves[None], axis=-1) + 9 * np.eye(len(waves))
    assert distances.min() > 0.05
    np.testing.assert_allclose(np.abs(waves).max(), 1, atol=1e-2)


def test_rows_and_columns_have_halves_of_the_width():
    waves = np.asarray(plane_waves(jnp.array([[[3, 5], [3, 6], [4, 5]]]), 16))[0]
    np.testing.assert_array_equal(waves[0, :8], waves[1, :8])
    np.testing.assert_array_equal(waves[0, 8:], waves[2, 8:])
    np.testing.assert_array_equal(waves[0, :8], np.asarray(plane_waves(jnp.array([[[5, 3]]]), 16))[0, 0, 8:])


def image(seed, height, width):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3)).astype(np.uint8)


def test_the_pixel_shuffle_joins_the_patches_of_a_cell():
    """With patches as activations, a merged token is the merge x merge neighbourhood of its cell."""
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


def encode(*pictures, padding=0):
    """Merged tokens of a row of images."""
    module = model_modules(tiny_model())[0]
    cut = [patchify(picture, VISION.patch, VISION.merge) for picture in pictures]
    blank = (np.zeros((padding, VISION.patch_width), np.float32), np.zeros((padding, 2), np.int32))
    patches, positions = (np.concatenate(arrays)[None] for arrays in zip(*cut, blank, strict=True))
    numbers = [np.full(len(of), number) for number, (of, _) in enumerate(cut, 1)]
    segments = np.concatenate([*numbers, np.zeros(padding)]).astype(np.int32)[None]
    batch = {"patches": patches, "positions": positions, "segments": segments}
    batch = jax.tree.map(jnp.asarray, batch)
    run = jax.jit(lambda weights, batch: run_module(module, weights, {}, batch).outputs["backbone"])
    return np.asarray(run(initial_module(0, module), batch))[0]


def test_an_images_tokens_do_not_depend_on_what_else_is_in_the_row():
    alone = encode(image(0, 8, 4))
    assert alone.shape == (2, BACKBONE.width)
    np.testing.assert_allclose(encode(image(1, 4, 8), image(0, 8, 4), padding=4)[2:4], alone, rtol=1e-4, atol=1e-5)
    assert np.max(np.abs(encode(image(2, 8, 4)) - alone)) > 1e-2
