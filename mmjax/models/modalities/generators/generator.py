"""Generators: the projector of every kind, and the pieces and samplers of U-Nets and diffusion transformers.

`model.model_modules` builds them by `generator_module`; `mmjax.generation.image_generation` samples images by
`generate_images`.
"""

import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from configs.architectures import BackboneConfig, DenoisingConfig, DiTConfig, GeneratorConfig, UNetConfig
from configs.modules.generator import unregistered_generator
from mmjax.models.modalities.generators.denoising import (
    ConditionedLatents,
    Conditions,
    Images,
    LatentSampler,
    conditions_and_images,
    denoising_output,
    noisy_images,
    with_dropout,
)
from mmjax.models.modalities.generators.diffusion import classifier_free_guidance, ddim_sample, standard_normals
from mmjax.models.modalities.generators.diffusion_transformer import dit_pieces, dit_prediction
from mmjax.models.modalities.generators.noise_schedules import noise_schedule
from mmjax.models.modalities.generators.unet import UNet
from mmjax.models.modalities.projectors import ConditionProjector
from mmjax.models.structure.module import Module, ModuleInputs, ModuleOutput, Piece, PieceModule
from sharding.axes import Axes


class DiffusionLoss(PieceModule):
    """The loss of the U-Net's predictions."""

    def __init__(self, config: UNetConfig) -> None:
        """Creates the U-Net."""
        self.unet = UNet(config)
        self.config = config
        self.batch_keys = ("weights", "samples", "seed_and_step", *(() if config.autoencoder else ("images",)))

    def __call__(self, x: Conditions | ConditionedLatents, batch: ModuleInputs, axes: Axes) -> ModuleOutput:
        """Returns the loss, and each image's error.

        Args:
            x: Conditions, with latents where the generator has an autoencoder; else images are read from the batch.
            batch: `weights` [r, g] of the images in the loss, 0 where there is no image, `samples` [r, g], the seed
                and the step.
            axes: Mesh axes.
        """
        conditions, images = conditions_and_images(x, batch)
        noisy = noisy_images(self.config, images, batch)
        conditions = with_dropout(self.config, conditions, batch)
        predicted = self.unet(noisy.noisy, noisy.time, conditions, axes).astype(jnp.float32)
        return denoising_output(self.config, noisy, predicted, batch, axes)


@functools.singledispatch
def generator_module(config: GeneratorConfig, backbone: BackboneConfig) -> Module:
    """Builds the generator that a configuration describes; a new kind registers its own function, by its type."""
    raise unregistered_generator(config)


def image_generator_module(config: GeneratorConfig, backbone: BackboneConfig, *pieces: Piece) -> Module:
    """Builds a generator: its output projector, whose outputs `[r, g, q, c]` enter the first of the given pieces.

    Args:
        config: The generator.
        backbone: The language model whose hidden states are the conditions.
        *pieces: Pieces after the projector; the last returns a `ModuleOutput` with the loss.
    """
    projector = Piece(
        name="projector", part=f"{config.name}_projector", build=lambda: ConditionProjector(config, backbone)
    )
    return Module(config.name, (projector, *pieces), inputs=(backbone.name,))


@generator_module.register
def _unet_module(config: UNetConfig, backbone: BackboneConfig) -> Module:
    """Builds a U-Net's module; its autoencoder trains only if `TrainConfig.trainable` names the part `{name}_vae`."""
    unet = Piece(name="unet", part=config.name, build=lambda: DiffusionLoss(config))
    return image_generator_module(config, backbone, *autoencoder_pieces(config), unet)


@generator_module.register
def _dit_module(config: DiTConfig, backbone: BackboneConfig) -> Module:
    """Builds a diffusion transformer's module; the runs of equal blocks are stacks, which a pipeline may cut."""
    return image_generator_module(config, backbone, *autoencoder_pieces(config), *dit_pieces(config))


def autoencoder_pieces(config: DenoisingConfig) -> tuple[Piece, ...]:
    """Returns the piece of the autoencoder; none for a generator that denoises pixels."""
    if not config.autoencoder:
        return ()
    return (Piece(name="vae", part=f"{config.name}_vae", build=lambda: LatentSampler(config)),)


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
        pieces: Its pieces by name, with their parameters; of a stack, its layers in order.
        conditions: Projected conditions of each image.
        keys: Random key of each image's noise.
        steps: Number of sampling steps, at least 1.
        guidance: Scale of classifier-free guidance (arXiv 2207.12598); 1 for none.
    """
    raise unregistered_generator(config)


@generate_images.register
def _denoise(
    config: DenoisingConfig,
    pieces: Mapping[str, Any],
    conditions: Float[Array, "b q k"],
    keys: jax.Array,
    steps: int,
    guidance: float = 1.0,
) -> Images:
    """Denoises pure noise by DDIM (arXiv 2010.02502; Euler's method for a rectified flow), and decodes latents."""

    def predict(x: jax.Array, time: jax.Array, conditions: jax.Array) -> jax.Array:
        return denoising_prediction(config, pieces, x, time, conditions)

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


@functools.singledispatch
def denoising_prediction(
    config: DenoisingConfig,
    pieces: Mapping[str, Any],
    maps: Images,
    time: Float[Array, " b"],
    conditions: Float[Array, "b q k"],
) -> Images:
    """Computes the network's prediction for noisy images or latents, float32, on one device.

    Args:
        config: The generator.
        pieces: Its pieces by name, with their parameters; of a stack, its layers in order.
        maps: Noisy images or latents.
        time: Time steps, whole or not.
        conditions: Conditions of each image.
    """
    raise unregistered_generator(config)


@denoising_prediction.register
def _unet_prediction(
    config: UNetConfig,
    pieces: Mapping[str, Any],
    maps: Images,
    time: Float[Array, " b"],
    conditions: Float[Array, "b q k"],
) -> Images:
    return pieces["unet"].unet(maps, time, conditions, Axes()).astype(jnp.float32)


denoising_prediction.register(DiTConfig, dit_prediction)
