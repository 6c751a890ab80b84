"""Learned position tables: exact at their own size, PyTorch's interpolation at other sizes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mmjax.models.modalities.position_table import LearnedPositions2D

SIDE, WIDTH = 4, 3
INTERPOLATIONS = ("bicubic", "bicubic_antialiased", "bilinear_antialiased", "bilinear_corners")


def places(height, width):
    grid = np.meshgrid(np.arange(height), np.arange(width), indexing="ij")
    return np.stack(grid, axis=-1).reshape(-1, 2)


def table(interpolation="bicubic"):
    module = LearnedPositions2D(SIDE, WIDTH, interpolation)
    values = np.random.default_rng(0).normal(size=(SIDE, SIDE, WIDTH)).astype(np.float32)
    module.table.set_value(jnp.asarray(values))
    return jax.jit(lambda positions, segments: module(positions, segments)), values


@pytest.mark.parametrize("interpolation", INTERPOLATIONS)
def test_an_image_of_the_tables_size_is_not_interpolated(interpolation):
    module, values = table(interpolation)
    embeddings = module(jnp.asarray(places(SIDE, SIDE))[None], jnp.ones((1, SIDE**2), jnp.int32))
    np.testing.assert_array_equal(embeddings[0], values.reshape(-1, WIDTH))


@pytest.mark.parity
@pytest.mark.parametrize("interpolation", INTERPOLATIONS)
def test_packed_images_are_interpolated_each_by_itself(interpolation):
    torch = pytest.importorskip("torch")
    module, values = table(interpolation)
    mode, _, option = interpolation.partition("_")
    options = {"antialiased": {"antialias": True}, "corners": {"align_corners": True}}.get(option, {})
    sizes = [(6, 3), (2, 5), (1, 9), (SIDE, SIDE)]
    positions = np.concatenate([places(*size) for size in sizes] + [np.zeros((2, 2), int)])
    segments = np.repeat([1, 2, 3, 4, 0], [height * width for height, width in sizes] + [2])
    embeddings = np.asarray(module(jnp.asarray(positions)[None], jnp.asarray(segments)[None]))[0]
    for number, size in enumerate(sizes, start=1):
        maps = torch.tensor(values).permute(2, 0, 1)[None]
        expected = torch.nn.functional.interpolate(maps, size=size, mode=mode, **options)
        expected = expected[0].permute(1, 2, 0).reshape(-1, WIDTH)
        np.testing.assert_allclose(embeddings[segments == number], expected.numpy(), atol=1e-5)


@pytest.mark.parametrize("interpolation", INTERPOLATIONS)
def test_a_class_token_does_not_change_other_positions(interpolation):
    module, values = table(interpolation)
    positions = np.concatenate([[[-1, -1]], places(SIDE, SIDE)])
    embeddings = module(jnp.asarray(positions)[None], jnp.ones((1, SIDE**2 + 1), jnp.int32))
    np.testing.assert_array_equal(embeddings[0, 1:], values.reshape(-1, WIDTH))
    assert np.isfinite(embeddings).all()  # what is not used must not spoil gradients
