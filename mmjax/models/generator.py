"""The generator module: its diffusion loss, around a U-Net."""

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from configs.architectures import GeneratorConfig
from mmjax.models.diffusion import draw, velocity
from mmjax.models.interface import Batch, Leaving
from mmjax.models.unet import UNet
from sharding.axes import Axes


class DiffusionLoss(nnx.Module):
    """Mean squared error of the velocity over an image, summed over the images with their weights."""

    reads = ("images", "weights", "samples", "seed_and_step")

    def __init__(self, config: GeneratorConfig) -> None:
        self.unet = UNet(config)

    def __call__(self, x: Float[Array, "r g q c"], batch: Batch, axes: Axes) -> Leaving:
        """x: projected conditions. Images without a target have weight 0."""
        conditions, images = merge(x), merge(batch["images"])
        time, noise = draw(batch["seed_and_step"], batch["samples"].reshape(-1), images.shape[1:])
        noised, target = velocity(images, noise, time)
        predicted = self.unet(noised, time, conditions, axes).astype(jnp.float32)
        errors = jnp.mean(jnp.square(predicted - target), axis=(1, 2, 3))
        weights = batch["weights"]
        return Leaving({}, jnp.sum(weights.reshape(-1) * errors), {"errors": errors.reshape(weights.shape)})


def merge(x: jax.Array) -> jax.Array:
    """Rows and images of a row to one dimension."""
    return x.reshape(-1, *x.shape[2:])
