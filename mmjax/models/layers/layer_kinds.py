"""Layers of one stack that differ in their shared inputs, such as masks and rotations, and not in their parameters.

Blocks of the backbone and of vision encoders choose the inputs of each layer by `inputs_of_layer`.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from mmjax.models.layers.transformer import SharedInputs

InputsOfKinds = SharedInputs | tuple[SharedInputs, ...]
"""Shared inputs of the blocks of a stage: one for all layers, or one for every kind of layer that the stack has."""


def inputs_of_layer(inputs: InputsOfKinds, kind_of_layers: tuple[int, ...], layer: int | jax.Array) -> SharedInputs:
    """Returns the shared inputs of a layer; in a scan over layers the number is traced, and the device chooses.

    Args:
        inputs: Shared inputs of every kind, of the same shapes.
        kind_of_layers: For every layer of the stack the number of its kind.
        layer: Number of the layer.
    """
    if isinstance(inputs, SharedInputs):
        return inputs
    if isinstance(layer, int):
        return inputs[kind_of_layers[layer]]
    kind = jnp.array(kind_of_layers, jnp.int32)[layer]

    def choose(*leaves: Any) -> Any:
        return leaves[0] if all(leaf is leaves[0] for leaf in leaves) else lax.select_n(kind, *leaves)

    return jax.tree.map(choose, *inputs)
