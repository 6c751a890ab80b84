"""The generator: its pieces, independence of latents, and invalid configurations."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs.architectures import AutoencoderConfig, ModelConfig, UNetConfig
from mmjax.models.modalities.generators.denoising import ConditionedLatents
from mmjax.models.modalities.generators.generator import generator_module
from mmjax.models.modalities.losses import LossTerms
from mmjax.models.structure.parameters import init_layer_parameters, piece_definition
from sharding.axes import Axes
from tests.tiny_model import BACKBONE, GENERATOR, LATENT_GENERATOR, tiny_batch

MODULE = generator_module(LATENT_GENERATOR, BACKBONE)
(VAE,) = (piece for piece in MODULE.pieces if piece.name == "vae")


def encoded(images, samples):
    """Conditions, and sampled latents of one row."""

    @jax.jit
    def run(parameters, images, samples):
        batch = {"images": images, "samples": samples, "seed_and_step": jnp.array([3, 5])}
        return piece_definition(VAE).apply(parameters, jnp.ones((1, images.shape[1], 1, 8)), batch, Axes())

    return run(init_layer_parameters(0, MODULE, VAE, 0), images, samples)


def test_pieces_are_projector_optional_autoencoder_and_unet():
    assert [(piece.name, piece.part) for piece in MODULE.pieces] == [
        ("projector", "painter_projector"), ("vae", "painter_vae"), ("unet", "painter"),
    ]  # fmt: skip
    assert [piece.name for piece in generator_module(GENERATOR, BACKBONE).pieces] == ["projector", "unet"]
    assert "images" not in piece_definition(MODULE.pieces[-1]).batch_keys
    assert "images" in piece_definition(generator_module(GENERATOR, BACKBONE).pieces[-1]).batch_keys


def test_latents_depend_on_their_image_and_sample_alone():
    images = jnp.asarray(np.random.default_rng(0).uniform(-1, 1, (1, 3, 4, 4, 3)), jnp.float32)
    first = encoded(images, jnp.array([[7, 8, 9]]))
    moved = encoded(images[:, ::-1], jnp.array([[9, 8, 7]]))
    other = encoded(images, jnp.array([[7, 8, 1]]))
    assert isinstance(first, ConditionedLatents) and first.latents.shape == (3, 2, 2, 2)
    np.testing.assert_array_equal(first.conditions, np.ones((1, 3, 1, 8)))
    np.testing.assert_allclose(moved.latents[::-1], first.latents, atol=1e-6)
    np.testing.assert_array_equal(other.latents[:2], first.latents[:2])
    assert np.abs(other.latents[2] - first.latents[2]).max() > 1e-3


def test_sizes_of_latents():
    assert LATENT_GENERATOR.latent_shape == (2, 2, 2) and GENERATOR.latent_shape == (4, 4, 3)
    spectrogram = dataclasses.replace(LATENT_GENERATOR, image_size=(16, 8), channels=1)
    assert spectrogram.image_sides == (16, 8) and spectrogram.latent_shape == (8, 4, 2)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"image_size": 6}, r"image_size = 6 is no multiple of 4"),
        ({"image_size": (8, 6)}, r"image_size = \(8, 6\) is no multiple of 4"),
        (
            {"image_size": 4, "autoencoder": AutoencoderConfig(widths=(32, 32))},
            "image_size = 4 is no multiple of 8.*and the autoencoder's 2",
        ),
        ({"head_width": (4,)}, "head_width has 1 entries for 2 widths"),
        ({"head_width": (4, 5)}, "head_width = 5 does not divide the width 16"),
        ({"second_attention": "none"}, "second_attention is 'none'; choose from conditions, map"),
        ({"pooled": "mean"}, "pooled is 'mean'; choose from added, concatenated, none"),
        ({"condition_dropout": 1.0}, "condition_dropout is 1.0"),
    ],
)
def test_invalid_generators_are_refused(changed, message):
    fields = {"image_size": 8, "widths": (8, 16), "head_width": 4, "groups": 4} | changed
    with pytest.raises(ValueError, match=message):
        UNetConfig(**fields)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"widths": ()}, "widths is empty"),
        ({"widths": (8, 12), "groups": 8}, "groups = 8 does not divide the width 12"),
        ({"scaling_factor": 0.0}, "scaling_factor is 0.0"),
    ],
)
def test_invalid_autoencoders_are_refused(changed, message):
    with pytest.raises(ValueError, match=message):
        AutoencoderConfig(**changed)


def test_a_loss_gets_the_images_noise_and_scales_that_the_target_is_made_of():
    def loss(predictions):
        signal, noise = (scale[:, None, None, None] for scale in (predictions.signal_scale, predictions.noise_scale))
        velocity = signal * predictions.noise - noise * predictions.images
        difference = jnp.mean(jnp.square(predictions.predicted - velocity), axis=(1, 2, 3))
        return LossTerms(2.0 * predictions.mean_squared_errors, {"recomputed": difference})

    piece = generator_module(dataclasses.replace(GENERATOR, loss=loss), BACKBONE).pieces[-1]
    batch = tiny_batch(ModelConfig((), BACKBONE, (GENERATOR,)), rows=1)["generator"]
    batch = {name: jnp.asarray(array) for name, array in batch.items()} | {"seed_and_step": jnp.array([3, 5])}
    parameters = init_layer_parameters(0, generator_module(GENERATOR, BACKBONE), piece, 0)
    run = jax.jit(lambda *operands: piece_definition(piece).apply(*operands, Axes()))
    output = run(parameters, jnp.ones((1, 2, 2, 8)), batch)
    weighted = jnp.sum(batch["weights"] * output.auxiliary_metrics["errors"])
    assert weighted > 0
    np.testing.assert_allclose(output.loss, 2 * weighted, rtol=1e-6)
    np.testing.assert_allclose(output.auxiliary_losses["recomputed"], weighted, rtol=1e-5)
