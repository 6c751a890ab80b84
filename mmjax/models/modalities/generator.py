"""The generator module: its output projector, its autoencoder if it has one, and its diffusion loss around a U-Net."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from configs.architectures import BackboneConfig, GeneratorConfig
from mmjax.models.modalities.autoencoder import Autoencoder
from mmjax.models.modalities.diffusion import (
    add_noise,
    classifier_free_guidance,
    ddim_sample,
    drop_conditions,
    sample_keys,
    standard_normals,
)
from mmjax.models.modalities.noise_schedules import noise_schedule
from mmjax.models.modalities.projectors import ConditionProjector
from mmjax.models.modalities.unet import UNet
from mmjax.models.structure.interface import Batch, ModuleOutput
from mmjax.models.structure.module import Module, Piece
from sharding.axes import Axes

TIME, NOISE, LATENT, DROPOUT = range(4)
"""What random keys are for."""

Projected = Float[Array, "r g q c"]
Images = Float[Array, "b y x c"]


class ConditionedLatents(NamedTuple):
    """Projected conditions, and the latents of the images that they are to become."""

    conditions: Projected
    latents: Images


class LatentSampler(nnx.Module):
    """The autoencoder between projector and U-Net: draws latents of the images; conditions pass by."""

    reads = ("images", "samples", "seed_and_step")

    def __init__(self, config: GeneratorConfig) -> None:
        self.autoencoder = Autoencoder(config.autoencoder, config.channels)

    def __call__(self, x: Projected, batch: Batch, axes: Axes) -> ConditionedLatents:
        images = flatten_rows(batch["images"]).astype(x.dtype)
        mean, deviation = (of.astype(jnp.float32) for of in self.autoencoder.encode(images, axes))
        keys = sample_keys(batch["seed_and_step"], flatten_rows(batch["samples"]), LATENT)
        return ConditionedLatents(x, mean + deviation * standard_normals(keys, mean.shape[1:]))


class DiffusionLoss(nnx.Module):
    """Mean squared error of the prediction over an image or its latents, summed over the images with their weights."""

    def __init__(self, config: GeneratorConfig) -> None:
        self.unet = UNet(config)
        self.schedule, self.dropout = config.schedule, config.condition_dropout
        self.reads = ("weights", "samples", "seed_and_step", *(() if config.autoencoder else ("images",)))

    def __call__(self, x: Projected | ConditionedLatents, batch: Batch, axes: Axes) -> ModuleOutput:
        """Images without a target have weight 0."""
        conditions, images = x if isinstance(x, ConditionedLatents) else (x, flatten_rows(batch["images"]))
        conditions = flatten_rows(conditions)

        def keys(purpose: int) -> jax.Array:
            return sample_keys(batch["seed_and_step"], flatten_rows(batch["samples"]), purpose)

        schedule = noise_schedule(self.schedule)
        time, noise = jax.vmap(schedule.sample_time)(keys(TIME)), standard_normals(keys(NOISE), images.shape[1:])
        if self.dropout:
            conditions = drop_conditions(conditions, keys(DROPOUT), self.dropout)
        mixed, target = add_noise(schedule, images, noise, time)
        predicted = self.unet(mixed, time, conditions, axes).astype(jnp.float32)
        errors = jnp.mean(jnp.square(predicted - target), axis=(1, 2, 3))
        weights = batch["weights"]
        return ModuleOutput({}, jnp.sum(weights.reshape(-1) * errors), {"errors": errors.reshape(weights.shape)})


def generator_module(config: GeneratorConfig, backbone: BackboneConfig) -> Module:
    """The pieces of a generator. The autoencoder is a part of its own, `{name}_vae`, which trains only if named."""
    vae = (Piece("vae", f"{config.name}_vae", lambda: LatentSampler(config)),) if config.autoencoder else ()
    projector = Piece("projector", f"{config.name}_projector", lambda: ConditionProjector(config, backbone))
    unet = Piece("unet", config.name, lambda: DiffusionLoss(config))
    return Module(config.name, (projector, *vae, unet), inputs=(backbone.name,))


def generate_images(
    config: GeneratorConfig,
    unet: UNet,
    autoencoder: Autoencoder | None,
    conditions: Float[Array, "b q k"],
    keys: jax.Array,
    steps: int,
    guidance: float = 1.0,
) -> Images:
    """Images in [-1, 1] by DDIM.

    Args:
        config: Of the generator.
        unet, autoencoder: With their parameters.
        conditions: Projected, of each image.
        keys: Random keys of each image's noise.
        steps: At least 1.
        guidance: How far to go away from the prediction without conditions (arXiv 2207.12598); 1 for not at all.
    """

    def predict(x: jax.Array, time: jax.Array, conditions: jax.Array) -> jax.Array:
        return unet(x, time, conditions, Axes()).astype(jnp.float32)

    made = ddim_sample(
        noise_schedule(config.schedule),
        classifier_free_guidance(predict, conditions, guidance),
        standard_normals(keys, config.latent_shape),
        steps,
        clip=autoencoder is None,
    )
    if autoencoder is None:
        return made
    return jnp.clip(autoencoder.decode(made.astype(conditions.dtype), Axes()).astype(jnp.float32), -1.0, 1.0)


def flatten_rows(x: jax.Array) -> jax.Array:
    """Rows and images of a row to one dimension."""
    return x.reshape(-1, *x.shape[2:])
