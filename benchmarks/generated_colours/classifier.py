"""A small classifier of the colour and the shape in an easy-VQA picture, trained on the real ones in seconds."""

import dataclasses
import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import optax

from data.datasets.easy_vqa import EasyVQA, colours_and_shapes, known_colour_and_shape
from data.media.patches import resize_to_square
from sharding.trees import Tree

WIDTHS = (16, 32, 64, 64)
"""Channels of the convolutions, each of which halves the sides."""

EPOCHS, ROWS, LEARNING_RATE = 12, 50, 3e-3

NOISE = 0.05
"""Standard deviation of the noise on training pictures, because generated pictures are never as clean as real ones."""


@dataclasses.dataclass(frozen=True, eq=False)
class LabelledImages:
    """Pictures of one split with their colours and shapes.

    Attributes:
        images: The pictures, float32 `[n, z, z, 3]` in [-1, 1].
        names: Names of all colours, then of all shapes.
        labels: Number of each picture's colour and of its shape, int32 `[n, 2]`.
    """

    images: np.ndarray
    names: tuple[tuple[str, ...], tuple[str, ...]]
    labels: np.ndarray


def labelled_images(source: EasyVQA, side: int) -> LabelledImages:
    """The generator's targets whose questions and answers tell both colour and shape."""
    colours, shapes = (tuple(sorted(names)) for names in colours_and_shapes())
    images, labels = [], []
    for image_id in source.image_ids:
        colour, shape = known_colour_and_shape(source.pairs[image_id])
        if colour and shape:
            images.append(resize_to_square(source.generated_image(image_id), side))
            labels.append((colours.index(colour), shapes.index(shape)))
    return LabelledImages(np.stack(images), (colours, shapes), np.array(labels, np.int32))


@dataclasses.dataclass(frozen=True, eq=False)
class ColourShapeClassifier:
    """A trained classifier."""

    parameters: Tree
    names: tuple[tuple[str, ...], tuple[str, ...]]

    def __call__(self, images: np.ndarray) -> np.ndarray:
        """The numbers of the likeliest colour and shape of each picture, int32 `[n, 2]`."""
        return np.asarray(_verdict(self.parameters, images, len(self.names[0])))

    def accuracies(self, images: np.ndarray, labels: np.ndarray) -> tuple[float, float]:
        """Shares of pictures judged to have their label's colour and shape."""
        colour, shape = (self(images) == labels).mean(axis=0)
        return float(colour), float(shape)


def train_classifier(data: LabelledImages, seed: int = 0) -> ColourShapeClassifier:
    """Trains convolutions, a maximum of each channel over positions, and a linear layer by Adam."""
    outputs = sum(map(len, data.names))
    random = np.random.default_rng(seed)
    parameters = _initial(data.images.shape[-1], outputs, random)
    optimizer = optax.adam(optax.cosine_decay_schedule(LEARNING_RATE, EPOCHS * (len(data.images) // ROWS)))
    state = optimizer.init(parameters)

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def step(parameters: Tree, state: Tree, images: jax.Array, labels: jax.Array) -> tuple[Tree, Tree]:
        gradients = jax.grad(_loss)(parameters, images, labels, len(data.names[0]))
        with jax.numpy_dtype_promotion("standard"):  # optax raises floats to integer counts
            changes, state = optimizer.update(gradients, state)
        return optax.apply_updates(parameters, changes), state

    for _ in range(EPOCHS):
        order = random.permutation(len(data.images))
        for start in range(0, len(order) - ROWS + 1, ROWS):
            chosen = order[start : start + ROWS]
            noise = random.normal(0, NOISE, (ROWS, *data.images.shape[1:])).astype(np.float32)
            parameters, state = step(parameters, state, data.images[chosen] + noise, data.labels[chosen])
    return ColourShapeClassifier(parameters, data.names)


def _initial(channels: int, outputs: int, random: np.random.Generator) -> Tree:
    def layer(inputs: Sequence[int], outputs: int) -> Tree:
        kernel = random.normal(0, (2 / np.prod(inputs)) ** 0.5, (*inputs, outputs)).astype(np.float32)
        return {"kernel": kernel, "bias": np.zeros(outputs, np.float32)}

    tree = {}
    for number, features in enumerate(WIDTHS):
        tree[f"convolution{number}"] = layer((3, 3, channels), features)
        channels = features
    return tree | {"linear": layer((channels,), outputs)}


def _logits(parameters: Tree, images: jax.Array) -> jax.Array:
    x = 1.0 - images  # the white around the shape becomes zero
    for number in range(len(WIDTHS)):
        layer = parameters[f"convolution{number}"]
        x = jax.lax.conv_general_dilated(x, layer["kernel"], (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        x = jax.nn.relu(x + layer["bias"].reshape(1, 1, 1, -1))
    layer = parameters["linear"]
    return x.max(axis=(1, 2)) @ layer["kernel"] + layer["bias"].reshape(1, -1)


def _loss(parameters: Tree, images: jax.Array, labels: jax.Array, colours: int) -> jax.Array:
    logits = _logits(parameters, images)
    both = zip((logits[:, :colours], logits[:, colours:]), (labels[:, 0], labels[:, 1]), strict=True)
    return sum(optax.softmax_cross_entropy_with_integer_labels(*head).mean() for head in both)


@functools.partial(jax.jit, static_argnums=2)
def _verdict(parameters: Tree, images: jax.Array, colours: int) -> jax.Array:
    logits = _logits(parameters, images)
    return jnp.stack([logits[:, :colours].argmax(-1), logits[:, colours:].argmax(-1)], axis=-1)
