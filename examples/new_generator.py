"""A kind of generator of your own: an MLP that carries noise to images along straight lines (arXiv 2209.03003).

In the folder of this file (copy it and new_generator.gin):

    python -m mmjax.train --gin_file=new_generator.gin --workdir=runs/new_generator
    python -m mmjax.verify --gin_file=new_generator.gin
    python -m mmjax.generate --workdir=runs/new_generator --prompt="a blue circle" --output=circle.png
"""

import dataclasses
import math

import jax
import jax.numpy as jnp

from configs.architectures import GeneratorConfig
from mmjax import register_generator
from mmjax.models.layers.feed_forward import MLP
from mmjax.models.modalities.generators.denoising import flatten_rows
from mmjax.models.modalities.generators.diffusion import classifier_free_guidance, sample_keys, standard_normals
from mmjax.models.modalities.generators.generator import image_generator_module
from mmjax.models.structure.module import ModuleOutput, Piece, PieceModule
from sharding.axes import Axes
from sharding.specs.generator import image_generator_spec
from sharding.specs.layers.image_kernels import image_layer, linear


@dataclasses.dataclass(frozen=True, kw_only=True)
class FlowConfig(GeneratorConfig):
    """An MLP with one hidden layer over the pixels, the conditions and the time."""

    hidden: int = 512
    pixels = property(lambda self: math.prod(self.image_sides) * self.channels)
    inputs = property(lambda self: self.pixels + self.conditions * self.condition_width + 1)


class FlowLoss(PieceModule):
    """The mean squared error of the predicted velocity, image - noise, at a random point of the line."""

    batch_keys = ("images", "weights", "samples", "seed_and_step")

    def __init__(self, config):
        """Creates the MLP."""
        self.mlp = MLP(config.inputs, config.hidden, config.pixels)

    def velocity(self, x, time, conditions, axes):
        """Predicts the velocity of images x [b, y, x, c] at times [b] under conditions [b, q, k]."""
        features = [
            x.reshape(len(x), -1),
            conditions.reshape(len(x), -1).astype(x.dtype),
            time[:, None].astype(x.dtype),
        ]
        return self.mlp(jnp.concatenate(features, axis=1), axes).reshape(x.shape)

    def __call__(self, conditions, batch, axes):
        """The loss of the images of conditions [r, g, q, k], and each image's error."""
        images, samples = flatten_rows(batch["images"]), flatten_rows(batch["samples"])
        noise = standard_normals(sample_keys(batch["seed_and_step"], samples, 0), images.shape[1:])
        time = jax.vmap(jax.random.uniform)(sample_keys(batch["seed_and_step"], samples, 1))  # [b]
        x = noise + time[:, None, None, None] * (images - noise)
        predicted = self.velocity(x.astype(conditions.dtype), time, flatten_rows(conditions), axes)
        errors = jnp.mean(jnp.square(predicted - (images - noise)), axis=(1, 2, 3))  # [r g]
        weights = batch["weights"]
        return ModuleOutput({}, jnp.sum(errors * weights.reshape(-1)), {"errors": errors.reshape(weights.shape)})


def costs(config, backbone):
    """The layers that planners see."""
    up = linear("up", config.inputs, config.hidden, 1, bias=True)
    down = linear("down", config.hidden, config.pixels, 1, bias=True, split_by_rows=True)
    layer = image_layer(config, "flow", (up, down), config.inputs)
    return image_generator_spec(config, backbone, layer, tensor_splits=(("hidden", config.hidden),))


def draw(config, pieces, conditions, keys, steps, guidance=1.0):
    """Follows the velocity from noise to images."""

    def predict(x, time, conditions):
        return pieces["flow"].velocity(x, time, conditions, Axes())

    guided = classifier_free_guidance(predict, conditions, guidance)
    x = standard_normals(keys, (*config.image_sides, config.channels))
    for step in range(steps):
        x = x + guided(x, jnp.full(len(x), step / steps)) / steps
    return jnp.clip(x, -1.0, 1.0)


register_generator(
    FlowConfig,
    specs=costs,
    modules=lambda config, backbone: image_generator_module(
        config, backbone, Piece(name="flow", part=config.name, build=lambda: FlowLoss(config))
    ),
    sample=draw,
)
