"""Layers whose weights are divided over replicas (fully sharded data parallelism, arXiv 1910.02054, stage 3).

A layer's weights are gathered right before it computes, in its forward and again in its backward, and the gradient of
each is scattered where it arises:

    forward:   y = layer(gather(w), x)
    backward:  dw = scatter(d layer / d gather(w)), dx = d layer / dx, with gather(w) once more

Between the two, no gathered weight is kept. The vjp function of the layer holds them among its residuals; they are
recognised by identity (`sharding.runtime.stages.residuals`), left out, and put in again.

With `gather_weights`, gathered weights are kept from the forward to the backward instead.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from pallas_kernels.varying import match_cotangent
from sharding.axes import Axes
from sharding.runtime.stages.residuals import split_vjp
from sharding.runtime.stages.weight_specs import fully_sharded_dimension, is_partition_spec
from sharding.trees import Tree

Layer = Callable[[Tree, Any, Any], Any]
"""`(weights, x, shared) -> output`; nothing is differentiated with respect to `shared`."""


def gather_weights_of(layer: Layer, specs: Tree, axes: Axes) -> Layer:
    """Makes the layer a function of its sharded weights, as they are stored between uses.

    Args:
        layer: A function of whole weights (of a tensor rank's whole shards).
        specs: The specs of the layer's weights, in their structure.
        axes: Axes of the layer's module.

    Returns:
        The layer itself where no weight is divided over `axes.fsdp`.
    """
    dimensions = _sharded_dimensions(specs, axes)
    return _gathering(layer, dimensions) if any(dimension is not None for dimension in dimensions) else layer


def gather_weights(weights: Tree, specs: Tree, axes: Axes) -> Tree:
    """Gathers whole weights, for layers whose backward directly follows their forward, and keeps them between the two.

    Gradients are scattered where they arise. Gradients of weights that a result does not depend on are zero, and not
    communicated.

    Args:
        weights: Sharded weights, as they are stored between uses.
        specs: The specs of the weights, in their structure.
        axes: Axes of the layers' module.
    """
    return _map_leaves(_gathered_weight, _sharded_dimensions(specs, axes), weights)


ShardedDimension = tuple[int, tuple[str, ...]] | None
"""The dimension of a weight that is divided, and the mesh axes over which; None for a whole weight."""


def _sharded_dimensions(specs: Tree, axes: Axes) -> tuple[ShardedDimension, ...]:
    return tuple(fully_sharded_dimension(spec, axes) for spec in jax.tree.leaves(specs, is_leaf=is_partition_spec))


def _gathering(layer: Layer, dimensions: tuple[ShardedDimension, ...]) -> Layer:
    @jax.custom_vjp
    def gathered(weights: Tree, x: Any, shared: Any) -> Any:
        return layer(_gather(weights, dimensions), x, shared)

    def forward(weights: Tree, x: Any, shared: Any) -> tuple[Any, Any]:
        whole = _gather(weights, dimensions)
        output, vjp = jax.vjp(lambda whole, x: layer(whole, x, shared), whole, x)
        residuals, structure = split_vjp(vjp, jax.tree.leaves(whole))
        return output, (weights, residuals, structure)

    def backward(saved: Any, output_gradient: Any) -> tuple[Tree, Any, None]:
        weights, residuals, structure = saved
        vjp = structure.restore(residuals, jax.tree.leaves(_gather(weights, dimensions)))
        whole_gradients, x_gradient = vjp(output_gradient)
        return _scatter(weights, whole_gradients, dimensions), x_gradient, None

    gathered.defvjp(forward, backward)
    return gathered


def _gather(weights: Tree, dimensions: tuple[ShardedDimension, ...]) -> Tree:
    return _map_leaves(_gather_weight, dimensions, weights)


def _scatter(weights: Tree, gradients: Tree, dimensions: tuple[ShardedDimension, ...]) -> Tree:
    return _map_leaves(_scatter_gradient, dimensions, weights, gradients)


def _gather_weight(weight: jax.Array, dimension: ShardedDimension) -> jax.Array:
    return weight if dimension is None else lax.all_gather(weight, dimension[1], axis=dimension[0], tiled=True)


def _scatter_gradient(weight: jax.Array, gradient: jax.Array, dimension: ShardedDimension) -> jax.Array:
    """Reduce-scatters the gradient of a whole weight over the ranks that divide it, in float32."""
    if dimension is not None:
        gradient = gradient.astype(jnp.float32)
        gradient = lax.psum_scatter(gradient, dimension[1], scatter_dimension=dimension[0], tiled=True)
    return match_cotangent(weight, gradient)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def _gathered_weight(weight: jax.Array, dimension: ShardedDimension) -> jax.Array:
    return _gather_weight(weight, dimension)


def _gathered_weight_forward(weight: jax.Array, dimension: ShardedDimension) -> tuple[jax.Array, jax.Array]:
    return _gather_weight(weight, dimension), weight


def _gathered_weight_backward(dimension: ShardedDimension, weight: jax.Array, gradient: jax.Array) -> tuple[jax.Array]:
    return (_scatter_gradient(weight, gradient, dimension),)


_gathered_weight.defvjp(_gathered_weight_forward, _gathered_weight_backward)


def _map_leaves(function: Callable, dimensions: tuple[ShardedDimension, ...], weights: Tree, *trees: Tree) -> Tree:
    leaves, structure = jax.tree.flatten(weights)
    others = (jax.tree.leaves(tree) for tree in trees)
    return structure.unflatten(map(function, leaves, *others, dimensions))
