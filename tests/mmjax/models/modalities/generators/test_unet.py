"""The U-Net: shapes, space to depth, and dependence on time and conditions."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from configs.architectures import UNetConfig
from mmjax.models.modalities.generators.unet import UNet, depth_to_space, space_to_depth, timestep_embedding
from sharding.axes import Axes

SMALL = UNetConfig(
    image_size=8, patch=2, widths=(8, 16), blocks=1, attention_levels=(0,), head_width=4, groups=4, condition_width=8
)


def draw(*shape, seed=0):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def test_space_to_depth_moves_patches_into_channels_and_back():
    images = draw(2, 4, 6, 3)
    folded = space_to_depth(images, 2)
    assert folded.shape == (2, 2, 3, 12)
    np.testing.assert_array_equal(folded[1, 1, 2].reshape(2, 2, 3), images[1, 2:4, 4:6])
    np.testing.assert_array_equal(depth_to_space(folded, 2), images)


def test_every_time_has_a_distinct_embedding():
    waves = np.asarray(timestep_embedding(jnp.linspace(0.0, 1000.0, 101), 16))
    distances = np.linalg.norm(waves[:, None] - waves[None], axis=-1) + 9 * np.eye(101)
    assert waves.shape == (101, 16) and distances.min() > 1e-2


@functools.cache
def compiled():
    """The network as a function of its parameters, and those it starts with."""
    graph, _ = nnx.split(nnx.eval_shape(lambda: UNet(SMALL)))
    state = jax.jit(lambda: nnx.split(UNet(SMALL))[1])()
    return jax.jit(lambda state, *arguments: nnx.merge(graph, state)(*arguments, Axes())), state


def random_weights():
    """Adds noise to every parameter, the last kernel included, which starts at 0."""
    leaves, structure = jax.tree.flatten(compiled()[1])
    return jax.tree.unflatten(structure, [draw(*leaf.shape, seed=at) * 0.2 for at, leaf in enumerate(leaves)])


def test_predictions_have_the_images_shape_and_depend_on_all_inputs():
    run = functools.partial(compiled()[0], random_weights())
    images, time, conditions = np.array(draw(2, 8, 8, 3)), np.float32([200, 700]), np.array(draw(2, 3, 8, seed=1))
    out = run(images, time, conditions)
    assert out.shape == images.shape
    first, first_two = np.float32([1, 0])[:, None, None], np.float32([[1, -1, 0], [0, 0, 0]])[..., None]
    others = {
        "images": (images * (1 + first[..., None]), time, conditions),
        "time": (images, np.float32([900, 700]), conditions),
        "conditions": (images, time, conditions * (1 + first)),
        "one condition, at the same mean": (images, time, conditions + first_two),
    }
    for changed_input, arguments in others.items():
        change = np.abs(np.asarray(run(*arguments)) - np.asarray(out))
        assert change[0].max() > 1e-3, changed_input
        assert change[1].max() == 0, changed_input  # images of a batch do not see each other


@pytest.mark.parametrize("widths", [(8,), (8, 16), (8, 16, 24)])
@pytest.mark.parametrize("blocks", [1, 2])
def test_any_number_of_resolutions_and_blocks(widths, blocks):
    config = UNetConfig(image_size=16, patch=2, widths=widths, blocks=blocks, head_width=4, groups=4)
    shapes = ((2, 16, 16, 3), (2,), (2, 4, config.condition_width))
    out = nnx.eval_shape(
        lambda *arguments: UNet(config)(*arguments, Axes()), *(jax.ShapeDtypeStruct(s, jnp.float32) for s in shapes)
    )
    assert out.shape == (2, 16, 16, 3)


def test_an_initial_unet_predicts_zero():
    run, state = compiled()
    out = run(state, draw(2, 8, 8, 3), jnp.array([500.0, 600.0]), draw(2, 3, 8))
    np.testing.assert_array_equal(out, np.zeros((2, 8, 8, 3)))
