"""The generator module: its output projector, its autoencoder if it has one, and its diffusion loss around a U-Net."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from configs.architectures import BackboneConfig, GeneratorConfig
from mmjax.models.autoencoder import Autoencoder
from mmjax.models.diffusion import drop_conditions, guided, noised, normals, sample, sample_keys
from mmjax.models.interface import Batch, Leaving
from mmjax.models.module import Module, Piece
from mmjax.models.noise_schedules import noise_schedule
from mmjax.models.projector import ConditionProjector
from mmjax.models.unet import UNet
from sharding.axes import Axes

TIME, NOISE, LATENT, DROPOUT = range(4)
"""What random keys are for."""

Projected = Float[Array, "r g q c"]
Images = Float[Array, "b y x c"]


class Prepared(NamedTuple):
    """Projected conditions, and the latents of the images that they are to become."""

    conditions: Projected
    latents: Images


class LatentImages(nnx.Module):
    """The autoencoder between projector and U-Net: draws latents of the images; conditions pass by."""

    reads = ("images", "samples", "seed_and_step")

    def __init__(self, config: GeneratorConfig) -> None:
        self.autoencoder = Autoencoder(config.autoencoder, config.channels)

    def __call__(self, x: Projected, batch: Batch, axes: Axes) -> Prepared:
        images = merge(batch["images"]).astype(x.dtype)
        mean, deviation = (of.astype(jnp.float32) for of in self.autoencoder.encode(images, axes))
        keys = sample_keys(batch["seed_and_step"], merge(batch["samples"]), LATENT)
        return Prepared(x, mean + deviation * normals(keys, mean.shape[1:]))


class DiffusionLoss(nnx.Module):
    """Mean squared error of the prediction over an image or its latents, summed over the images with their weights."""

    def __init__(self, config: GeneratorConfig) -> None:
        self.unet = UNet(config)
        self.schedule, self.dropout = config.schedule, config.condition_dropout
        self.reads = ("weights", "samples", "seed_and_step", *(() if config.autoencoder else ("images",)))

    def __call__(self, x: Projected | Prepared, batch: Batch, axes: Axes) -> Leaving:
        """Images without a target have weight 0."""
        conditions, images = x if isinstance(x, Prepared) else (x, merge(batch["images"]))
        conditions = merge(conditions)

        def keys(purpose: int) -> jax.Array:
            return sample_keys(batch["seed_and_step"], merge(batch["samples"]), purpose)

        schedule = noise_schedule(self.schedule)
        time, noise = jax.vmap(schedule.draw)(keys(TIME)), normals(keys(NOISE), images.shape[1:])
        if self.dropout:
            conditions = drop_conditions(conditions, keys(DROPOUT), self.dropout)
        mixed, target = noised(schedule, images, noise, time)
        predicted = self.unet(mixed, time, conditions, axes).astype(jnp.float32)
        errors = jnp.mean(jnp.square(predicted - target), axis=(1, 2, 3))
        weights = batch["weights"]
        return Leaving({}, jnp.sum(weights.reshape(-1) * errors), {"errors": errors.reshape(weights.shape)})


def generator_module(config: GeneratorConfig, backbone: BackboneConfig) -> Module:
    """The pieces of a generator. The autoencoder is a part of its own, `{name}_vae`, which trains only if named."""
    vae = (Piece("vae", f"{config.name}_vae", lambda: LatentImages(config)),) if config.autoencoder else ()
    projector = Piece("projector", f"{config.name}_projector", lambda: ConditionProjector(config, backbone))
    unet = Piece("unet", config.name, lambda: DiffusionLoss(config))
    return Module(config.name, (projector, *vae, unet), inputs=(backbone.name,))


def draw_images(
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

    made = sample(
        noise_schedule(config.schedule),
        guided(predict, conditions, guidance),
        normals(keys, config.latent_shape),
        steps,
        clip=autoencoder is None,
    )
    if autoencoder is None:
        return made
    return jnp.clip(autoencoder.decode(made.astype(conditions.dtype), Axes()).astype(jnp.float32), -1.0, 1.0)


def merge(x: jax.Array) -> jax.Array:
    """Rows and images of a row to one dimension."""
    return x.reshape(-1, *x.shape[2:])
