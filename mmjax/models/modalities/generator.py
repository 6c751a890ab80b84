"""Generators: the projector of every kind; of latent diffusion the autoencoder and the loss around a U-Net."""

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from configs.architectures import BackboneConfig, GeneratorConfig, UNetConfig
from configs.generator import unregistered_generator
from mmjax.models.modalities.autoencoder import Autoencoder
from mmjax.models.modalities.diffusion import (
    add_noise,
    classifier_free_guidance,
    ddim_sample,
    drop_conditions,
    sample_keys,
    standard_normals,
)
from mmjax.models.modalities.losses import DenoisingPredictions, mean_squared_error, weighted_loss
from mmjax.models.modalities.noise_schedules import noise_schedule
from mmjax.models.modalities.projectors import ConditionProjector
from mmjax.models.modalities.unet import UNet
from mmjax.models.structure.module import Module, ModuleInputs, ModuleOutput, Piece, PieceModule
from sharding.axes import Axes

TIME, NOISE, LATENT, DROPOUT = range(4)
"""Purposes of random keys (`sample_keys`)."""

Conditions = Float[Array, "r g q c"]
Images = Float[Array, "b y x c"]


class ConditionedLatents(NamedTuple):
    """Output of the autoencoder piece.

    Attributes:
        conditions: Projected conditions.
        latents: Latents of the images that belong to them.
    """

    conditions: Conditions
    latents: Images


class LatentSampler(PieceModule):
    """The autoencoder between projector and U-Net: samples latents of the images, and passes conditions through."""

    batch_keys = ("images", "samples", "seed_and_step")

    def __init__(self, config: UNetConfig) -> None:
        """Creates the autoencoder."""
        assert config.autoencoder is not None, "the piece is built only where the generator has an autoencoder"
        self.autoencoder = Autoencoder(config.autoencoder, config.channels)

    def __call__(self, conditions: Conditions, batch: ModuleInputs, axes: Axes) -> ConditionedLatents:
        """Samples mean + std * noise of each image's latents."""
        images = flatten_rows(batch["images"]).astype(conditions.dtype)
        mean, std = (values.astype(jnp.float32) for values in self.autoencoder.encode(images, axes))
        keys = sample_keys(batch["seed_and_step"], flatten_rows(batch["samples"]), LATENT)
        return ConditionedLatents(conditions, mean + std * standard_normals(keys, mean.shape[1:]))


class DiffusionLoss(PieceModule):
    """The loss of the U-Net's predictions, by default their mean squared errors, summed with the images' weights."""

    def __init__(self, config: UNetConfig) -> None:
        """Creates the U-Net."""
        self.unet = UNet(config)
        self.schedule, self.dropout = config.schedule, config.condition_dropout
        self.loss = config.loss or mean_squared_error
        self.batch_keys = ("weights", "samples", "seed_and_step", *(() if config.autoencoder else ("images",)))

    def __call__(self, x: Conditions | ConditionedLatents, batch: ModuleInputs, axes: Axes) -> ModuleOutput:
        """The loss, and each image's error.

        Args:
            x: Conditions, with latents where the generator has an autoencoder; else images are read from the batch.
            batch: `weights` [r, g] of the images in the loss, 0 where there is no image, `samples` [r, g], the seed
                and the step.
            axes: Mesh axes.
        """
        if isinstance(x, ConditionedLatents):
            conditions, images = flatten_rows(x.conditions), x.latents
        else:
            conditions, images = flatten_rows(x), flatten_rows(batch["images"])

        def keys(purpose: int) -> jax.Array:
            return sample_keys(batch["seed_and_step"], flatten_rows(batch["samples"]), purpose)

        schedule = noise_schedule(self.schedule)
        time, noise = jax.vmap(schedule.sample_time)(keys(TIME)), standard_normals(keys(NOISE), images.shape[1:])
        if self.dropout:
            conditions = drop_conditions(conditions, keys(DROPOUT), self.dropout)
        noisy_images, target = add_noise(schedule, images, noise, time)
        predicted = self.unet(noisy_images, time, conditions, axes).astype(jnp.float32)
        errors = jnp.mean(jnp.square(predicted - target), axis=(1, 2, 3))  # [r g]
        signal_scale, noise_scale = schedule.signal_and_noise(time)
        predictions = DenoisingPredictions(
            predicted=predicted,
            target=target,
            prediction=schedule.prediction,
            images=images,
            noise=noise,
            signal_scale=signal_scale,
            noise_scale=noise_scale,
            mean_squared_errors=errors,
        )
        weights = batch["weights"]
        loss, auxiliary_losses = weighted_loss(self.loss, predictions, weights.reshape(-1), axes)
        return ModuleOutput({}, loss, {"errors": errors.reshape(weights.shape)}, auxiliary_losses)


@functools.singledispatch
def generator_module(config: GeneratorConfig, backbone: BackboneConfig) -> Module:
    """Builds the generator that a configuration describes; a new kind registers its own function, by its type."""
    raise unregistered_generator(config)


def image_generator_module(config: GeneratorConfig, backbone: BackboneConfig, *pieces: Piece) -> Module:
    """A generator of the pieces behind its output projector, whose outputs `[r, g, q, c]` enter the first of them.

    Args:
        config: The generator.
        backbone: The language model whose hidden states are the conditions.
        *pieces: The last of them returns a `ModuleOutput` with the loss.
    """
    projector = Piece(
        name="projector", part=f"{config.name}_projector", build=lambda: ConditionProjector(config, backbone)
    )
    return Module(config.name, (projector, *pieces), inputs=(backbone.name,))


@generator_module.register
def _unet_module(config: UNetConfig, backbone: BackboneConfig) -> Module:
    """The autoencoder is a part of its own, `{name}_vae`, which trains only if `TrainConfig.trainable` names it."""
    unet = Piece(name="unet", part=config.name, build=lambda: DiffusionLoss(config))
    if not config.autoencoder:
        return image_generator_module(config, backbone, unet)
    autoencoder = Piece(name="vae", part=f"{config.name}_vae", build=lambda: LatentSampler(config))
    return image_generator_module(config, backbone, autoencoder, unet)


@functools.singledispatch
def generate_images(
    config: GeneratorConfig,
    pieces: Mapping[str, Any],
    conditions: Float[Array, "b q k"],
    keys: jax.Array,
    steps: int,
    guidance: float = 1.0,
) -> Images:
    """Generates images in [-1, 1]. A new kind registers its own function, by the type of its configuration.

    Args:
        config: The generator.
        pieces: Its pieces by name, with their parameters.
        conditions: Projected conditions of each image.
        keys: Random key of each image's noise.
        steps: Number of sampling steps, at least 1.
        guidance: Scale of classifier-free guidance (arXiv 2207.12598); 1 for none.
    """
    raise unregistered_generator(config)


@generate_images.register
def _sample_unet(
    config: UNetConfig,
    pieces: Mapping[str, Any],
    conditions: Float[Array, "b q k"],
    keys: jax.Array,
    steps: int,
    guidance: float = 1.0,
) -> Images:
    """By DDIM (arXiv 2010.02502)."""

    def predict(x: jax.Array, time: jax.Array, conditions: jax.Array) -> jax.Array:
        return pieces["unet"].unet(x, time, conditions, Axes()).astype(jnp.float32)

    generated = ddim_sample(
        noise_schedule(config.schedule),
        classifier_free_guidance(predict, conditions, guidance),
        standard_normals(keys, config.latent_shape),
        steps,
        clip=config.autoencoder is None,
    )
    if config.autoencoder is None:
        return generated
    decoded = pieces["vae"].autoencoder.decode(generated.astype(conditions.dtype), Axes())
    return jnp.clip(decoded.astype(jnp.float32), -1.0, 1.0)


def flatten_rows(x: jax.Array) -> jax.Array:
    """Joins the dimensions of rows and of images within a row: `[r, g, ...]` to `[r g, ...]`."""
    return x.reshape(-1, *x.shape[2:])
