"""Common code of U-Nets and diffusion transformers: latents of images, noisy images of a batch, and the loss."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from configs.architectures import DenoisingConfig
from mmjax.models.modalities.generators.autoencoder import Autoencoder
from mmjax.models.modalities.generators.diffusion import add_noise, drop_conditions, sample_keys, standard_normals
from mmjax.models.modalities.generators.noise_schedules import noise_schedule
from mmjax.models.modalities.losses import DenoisingPredictions, mean_squared_error, weighted_loss
from mmjax.models.structure.module import ModuleInputs, ModuleOutput, PieceModule
from sharding.axes import Axes

TIME, NOISE, LATENT, DROPOUT = range(4)
"""Purposes of random keys (`sample_keys`)."""

Conditions = Float[Array, "r g q k"]
Images = Float[Array, "b y x c"]


class ConditionedLatents(NamedTuple):
    """Output of the autoencoder piece.

    Attributes:
        conditions: Projected conditions.
        latents: Latents of the images that belong to them.
    """

    conditions: Conditions
    latents: Images


class NoisyImages(NamedTuple):
    """Images or latents with the noise that a step adds to them.

    Attributes:
        images: Images x without noise.
        noise: Their noise.
        time: Their times.
        noisy: x_t = a_t x + s_t noise.
        target: Target of the network's prediction.
    """

    images: Images
    noise: Images
    time: Float[Array, " b"]
    noisy: Images
    target: Images


class LatentSampler(PieceModule):
    """The autoencoder between projector and denoiser: samples latents of the images, and passes conditions through."""

    batch_keys = ("images", "samples", "seed_and_step")

    def __init__(self, config: DenoisingConfig) -> None:
        """Creates the autoencoder."""
        assert config.autoencoder is not None, "the piece is built only where the generator has an autoencoder"
        self.autoencoder = Autoencoder(config.autoencoder, config.channels)

    def __call__(self, conditions: Conditions, batch: ModuleInputs, axes: Axes) -> ConditionedLatents:
        """Samples mean + std * noise of each image's latents."""
        images = flatten_rows(batch["images"]).astype(conditions.dtype)
        mean, std = (values.astype(jnp.float32) for values in self.autoencoder.encode(images, axes))
        keys = random_keys(batch, LATENT)
        return ConditionedLatents(conditions, mean + std * standard_normals(keys, mean.shape[1:]))


def conditions_and_images(x: Conditions | ConditionedLatents, batch: ModuleInputs) -> tuple[jax.Array, Images]:
    """Returns conditions `[b, q, k]` and what is denoised: latents, or the images of the batch."""
    if isinstance(x, ConditionedLatents):
        return flatten_rows(x.conditions), x.latents
    return flatten_rows(x), flatten_rows(batch["images"])


def noisy_images(config: DenoisingConfig, images: Images, batch: ModuleInputs) -> NoisyImages:
    """Draws times and noise, which depend on seed, step and sample alone, and adds the noise to the images."""
    schedule = noise_schedule(config.schedule)
    time = jax.vmap(schedule.sample_time)(random_keys(batch, TIME))
    noise = standard_normals(random_keys(batch, NOISE), images.shape[1:])
    return NoisyImages(images, noise, time, *add_noise(schedule, images, noise, time))


def with_dropout(
    config: DenoisingConfig, conditions: Float[Array, "b q k"], batch: ModuleInputs
) -> Float[Array, "b q k"]:
    """Drops the conditions of a share of the images, for classifier-free guidance."""
    if not config.condition_dropout:
        return conditions
    return drop_conditions(conditions, random_keys(batch, DROPOUT), config.condition_dropout)


def denoising_output(
    config: DenoisingConfig, noisy: NoisyImages, predicted: Images, batch: ModuleInputs, axes: Axes
) -> ModuleOutput:
    """Computes the loss of predictions, by default their mean squared errors, summed with the images' weights.

    Args:
        config: The generator.
        noisy: Noisy images and their targets.
        predicted: The network's predictions, float32.
        batch: `weights` [r, g] of the images in the loss, 0 where there is no image.
        axes: Mesh axes.
    """
    schedule = noise_schedule(config.schedule)
    errors = jnp.mean(jnp.square(predicted - noisy.target), axis=(1, 2, 3))  # [r g]
    signal_scale, noise_scale = schedule.signal_and_noise(noisy.time)
    predictions = DenoisingPredictions(
        predicted=predicted,
        target=noisy.target,
        prediction=schedule.prediction,
        images=noisy.images,
        noise=noisy.noise,
        signal_scale=signal_scale,
        noise_scale=noise_scale,
        mean_squared_errors=errors,
    )
    weights = batch["weights"]
    loss = config.loss or mean_squared_error
    total, auxiliary_losses = weighted_loss(loss, predictions, weights.reshape(-1), axes)
    return ModuleOutput({}, total, {"errors": errors.reshape(weights.shape)}, auxiliary_losses)


def random_keys(batch: ModuleInputs, purpose: int) -> jax.Array:
    """Random keys of the images of a batch, row after row."""
    return sample_keys(batch["seed_and_step"], flatten_rows(batch["samples"]), purpose)


def flatten_rows(x: jax.Array) -> jax.Array:
    """Joins the dimensions of rows and of images within a row: `[r, g, ...]` to `[r g, ...]`."""
    return x.reshape(-1, *x.shape[2:])
