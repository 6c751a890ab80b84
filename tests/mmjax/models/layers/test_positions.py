"""Learned position tables: exact at their own size, PyTorch's bicubic interpolation at other sizes."""

import jax.numpy as jnp
import numpy as np
import pytest

from mmjax.models.layers.positions import LearnedPositions2D, sinusoidal_positions_1d

SIDE, WIDTH = 4, 3


def places(height, width):
    grid = np.meshgrid(np.arange(height), np.arange(width), indexing="ij")
    return np.stack(grid, axis=-1).reshape(-1, 2)


def table():
    module = LearnedPositions2D(SIDE, WIDTH)
    values = np.random.default_rng(0).normal(size=(SIDE, SIDE, WIDTH)).astype(np.float32)
    module.table.set_value(jnp.asarray(values))
    return module, values


def test_an_image_of_the_tables_size_is_not_interpolated():
    module, values = table()
    found = module(jnp.asarray(places(SIDE, SIDE))[None], jnp.ones((1, SIDE**2), jnp.int32))
    np.testing.assert_array_equal(found[0], values.reshape(-1, WIDTH))


def test_packed_images_are_interpolated_each_by_itself():
    torch = pytest.importorskip("torch")
    module, values = table()
    sizes = [(6, 3), (2, 5), (SIDE, SIDE)]
    positions = np.concatenate([places(*size) for size in sizes] + [np.zeros((2, 2), int)])
    segments = np.repeat([1, 2, 3, 0], [height * width for height, width in sizes] + [2])
    found = np.asarray(module(jnp.asarray(positions)[None], jnp.asarray(segments)[None]))[0]
    for number, size in enumerate(sizes, start=1):
        maps = torch.tensor(values).permute(2, 0, 1)[None]
        expected = torch.nn.functional.interpolate(maps, size=size, mode="bicubic", align_corners=False)
        expected = expected[0].permute(1, 2, 0).reshape(-1, WIDTH)
        np.testing.assert_allclose(found[segments == number], expected.numpy(), atol=1e-5)


def test_a_class_token_does_not_change_other_positions():
    module, values = table()
    positions = np.concatenate([[[-1, -1]], places(SIDE, SIDE)])
    found = module(jnp.asarray(positions)[None], jnp.ones((1, SIDE**2 + 1), jnp.int32))
    np.testing.assert_array_equal(found[0, 1:], values.reshape(-1, WIDTH))


def test_sinusoidal_positions_differ():
    waves = np.asarray(sinusoidal_positions_1d(jnp.arange(50)[None], 8))[0]
    assert len(np.unique(waves.round(4), axis=0)) == 50
