"""The diffusion transformer: its pieces and positions, generation, and invalid configurations."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs.architectures import AutoencoderConfig, DiTConfig, ModelConfig
from mmjax.models.modalities.generators.diffusion_transformer import patch_positions
from mmjax.models.modalities.generators.diffusion_transformer_blocks import ImageTokens
from mmjax.models.modalities.generators.generator import generate_images, generator_module
from mmjax.models.structure.parameters import init_module_parameters, layer_name, piece_definition
from sharding.axes import Axes
from tests.tiny_model import BACKBONE, tiny_batch

SMALL = DiTConfig(image_size=4, patch=2, width=8, heads=2, ffn=12, plain_layers=2, conditions=2, condition_width=8)
LATENTS = dataclasses.replace(
    SMALL, patch=1, autoencoder=AutoencoderConfig(latent_channels=3, widths=(8, 8), blocks=1, groups=4, shift=0.2)
)


def noisy(config, seed=0):
    """Parameters of the generator with noise on each, because some kernels start at 0."""
    random = np.random.default_rng(seed)
    values = init_module_parameters(0, generator_module(config, BACKBONE))
    return jax.tree.map(
        lambda leaf: jnp.asarray(leaf + np.float32(0.1) * random.standard_normal(leaf.shape, np.float32)), values
    )


def bound_pieces(config, parameters):
    """Flax modules by piece, as generation has them."""
    bound = {}
    for piece in generator_module(config, BACKBONE).pieces:
        layers = [
            piece_definition(piece).bind(parameters[piece.name][layer_name(layer)])
            for layer in range(piece.layers or 1)
        ]
        bound[piece.name] = layers if piece.layers else layers[0]
    return bound


def test_runs_of_equal_blocks_are_stacks_and_the_last_double_block_drops_the_conditions():
    runs = {
        (): [("plain", 2)],
        (("double_layers", 3), ("plain_layers", 0)): [("double", 2), ("double_last", 1)],
        (("double_layers", 3), ("image_attention_layers", 1), ("plain_layers", 0)): [
            ("double_image", 1), ("double", 1), ("double_last", 1),
        ],
        (("double_layers", 2), ("single_layers", 3)): [("double", 2), ("single", 3), ("plain", 2)],
    }  # fmt: skip
    for changed, expected in runs.items():
        config = dataclasses.replace(SMALL, **dict(changed))
        assert [(run.name, run.count) for run in config.block_runs] == expected
        pieces = generator_module(config, BACKBONE).pieces
        assert [(piece.name, piece.layers) for piece in pieces] == [
            ("projector", None), ("embed", None), *expected, ("head", None),
        ]  # fmt: skip
        assert config.block_runs[-1].updates_conditions == (expected[-1][0] != "double_last")


def test_positions_of_rows_are_those_of_images_one_after_another():
    x = jnp.arange(2 * 3 * LATENTS.positions_per_image * 8.0).reshape(2, -1, 8)
    tokens = ImageTokens.of_rows(x, LATENTS)
    assert tokens.patches.shape == (6, 4, 8) and tokens.conditions.shape == (6, 2, 8)
    assert tokens.embedding.shape == (6, 1, 8) and tokens.carried.shape == (6, 2, 8)  # 12 numbers in 2 positions
    np.testing.assert_array_equal(tokens.rows(2), x)


def test_latents_reach_the_loss_unchanged():
    def squared_errors(predictions):
        seen.append(predictions)
        return predictions.mean_squared_errors

    config = dataclasses.replace(LATENTS, loss=squared_errors)
    batch = tiny_batch(ModelConfig((), BACKBONE, (config,)), rows=2)["generator"]
    batch = {name: jnp.asarray(array) for name, array in batch.items()} | {"seed_and_step": jnp.array([3, 5])}

    @jax.jit
    def run(parameters):
        seen.clear()
        pieces = bound_pieces(config, parameters)
        encoded = pieces["vae"](jnp.ones((2, 2, 2, 8)), batch, Axes())
        x = pieces["embed"](encoded, batch, Axes())
        for block in pieces["plain"]:
            x = block(x, {}, Axes())
        output = pieces["head"](x, batch, Axes())
        (predictions,) = seen
        assert predictions.prediction == "flow"
        return encoded.latents, predictions.images, predictions.target, predictions.noise, output.loss

    seen: list = []
    latents, images, target, noise, loss = run(noisy(config))
    np.testing.assert_array_equal(images, latents)
    np.testing.assert_array_equal(target, noise - latents)
    assert float(loss) > 0


def test_positions_are_cropped_from_the_middle_of_the_grid_and_scaled():
    plain = patch_positions(dataclasses.replace(SMALL, image_size=(4, 8)))
    assert plain.shape == (8, 8)
    np.testing.assert_allclose(plain[5], [np.sin(1), np.sin(0.01), np.cos(1), np.cos(0.01)] * 2, atol=1e-7)
    middle = patch_positions(dataclasses.replace(SMALL, position_grid=6, position_base=3))
    np.testing.assert_allclose(middle[1, [0, 4]], np.sin([1.5, 1.0]), atol=1e-7)  # column 3, row 2, halved


@pytest.mark.parametrize("config", [SMALL, LATENTS], ids=["pixels", "latents"])
def test_an_image_depends_on_its_own_conditions_and_key_alone(config):
    pieces, random = noisy(config), np.random.default_rng(1)
    conditions, keys = random.normal(size=(3, 2, 8)).astype(np.float32), jax.random.split(jax.random.key(0), 3)

    @jax.jit
    def sample(parameters, conditions, keys):
        return generate_images(config, bound_pieces(config, parameters), conditions, keys, 3, 2.0)

    images = sample(pieces, conditions, keys)
    assert images.shape == (3, 4, 4, 3) and np.abs(images).max() <= 1 and np.std(images) > 0.05
    np.testing.assert_allclose(sample(pieces, conditions[::-1], keys[::-1])[::-1], images, atol=1e-5)
    changed = np.concatenate([conditions[:2], -conditions[2:]])
    others = sample(pieces, changed, keys)
    np.testing.assert_allclose(others[:2], images[:2], atol=1e-6)
    assert np.abs(others[2] - images[2]).max() > 1e-3


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"image_size": 6, "patch": 4}, "image_size = 6 is no multiple of 4"),
        ({"heads": 3}, "heads = 3 does not divide width = 8"),
        ({"width": 6, "heads": 1}, "width = 6 is no multiple of 4"),
        ({"plain_layers": 0}, "has no layers"),
        ({"single_layers": -1}, "single_layers is -1"),
        ({"image_attention_layers": 1}, "image_attention_layers = 1 exceeds double_layers = 0"),
        ({"positions": "learned"}, "positions is 'learned'; choose from sinusoidal, rotary"),
        ({"positions": "rotary", "rotary_axes": (0, 2, 4)}, r"rotary_axes = \(0, 2, 4\) must be even and sum to the 4"),
        ({"position_grid": 1}, "position_grid = 1 is less than the 2 patches"),
        ({"pooled_width": 9}, "pooled_width is 9; give 0 to condition_width = 8"),
    ],
)
def test_invalid_transformers_are_refused(changed, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(SMALL, **changed)
