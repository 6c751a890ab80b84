"""Moments in bfloat16: widened to float32 for the arithmetic of an update, and rounded stochastically afterwards.

A step changes a moment by a small share of it, `1 - beta` times its distance from the new value. Where that is less
than half the distance between neighbours in bfloat16, 1/256 of a value, rounding to the nearest never moves the moment:
with `beta2` 0.999 the second moment keeps the largest gradients for ever. Stochastic rounding goes to either neighbour,
the more probably the nearer it is, so that a moment is right in the mean.

The random bits are a function of the number of updates, the parameter's path and the element's place in the whole
parameter. Layouts do not change them, and the hash that makes them is computed in the loop of the update.
"""

import zlib
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, BFloat16, Float, UInt32

from configs.optimizer import MomentDtype
from sharding.trees import Tree

Path = tuple[Any, ...]
_Value = TypeVar("_Value")


def by_path(tree: Tree) -> dict[Path, Any]:
    """The leaves of a layer's tree by their paths."""
    return dict(jax.tree_util.tree_leaves_with_path(tree))


def of_parameter(path: Path, values: Mapping[Path, _Value]) -> _Value | None:
    """The value of the parameter whose path a path in the optimizer state ends with; None if there is none."""
    suffixes = (path[start:] for start in range(len(path)))
    return next((values[suffix] for suffix in suffixes if suffix in values), None)


def store_moments(state: Any, parameters: Tree, dtype: MomentDtype, updates: jax.typing.ArrayLike, name: str) -> Any:
    """Rounds the moments of a layer's optimizer state to the type in which they are stored.

    Args:
        state: Optimizer state in float32.
        parameters: The layer's parameters, or their shapes. State of a parameter's path and shape is a moment.
        dtype: The type.
        updates: The number of updates before.
        name: Path of the layer.
    """
    if dtype == "float32":
        return state

    # Equal layers share a kernel if what differs between them is no constant of it.
    of_layer = jax.lax.optimization_barrier(_mix(_hash(name) ^ _mix(jnp.uint32(updates))))

    def store(path: Path, moment: jax.Array) -> jax.Array:
        return round_stochastically(moment, of_layer, _hash(jax.tree_util.keystr(path)))

    return _map_moments(store, state, parameters)


def widen_moments(state: Any, parameters: Tree) -> Any:
    """The optimizer state of a layer with its moments in float32, as an update computes with them."""
    return _map_moments(lambda _, moment: moment.astype(jnp.float32), state, parameters)


def _map_moments(function: Callable[[Path, jax.Array], jax.Array], state: Any, parameters: Tree) -> Any:
    shapes = {path: leaf.shape for path, leaf in by_path(parameters).items()}

    def apply(path: Path, leaf: jax.Array) -> jax.Array:
        return function(path, leaf) if of_parameter(path, shapes) == leaf.shape else leaf

    return jax.tree_util.tree_map_with_path(apply, state)


def round_stochastically(
    values: Float[Array, "*shape"], seed: UInt32[Array, ""], stream: UInt32[Array, ""]
) -> BFloat16[Array, "*shape"]:
    """Rounds finite float32 values to one of their two neighbours in bfloat16, without bias; exact values stay.

    A value is rounded away from zero with the probability (distance to the neighbour nearer zero) / (distance between
    the neighbours): 16 random bits are added to the 16 bits that bfloat16 lacks.

    Args:
        values: The values.
        seed: With the place of an element, which counts in the whole array, it decides about its rounding.
        stream: A constant by which arrays with one seed differ.
    """
    index = jnp.zeros(values.shape, jnp.uint32)
    for dimension, size in enumerate(values.shape):
        index = index * jnp.uint32(size) + jax.lax.broadcasted_iota(jnp.uint32, values.shape, dimension)
    bits = jax.lax.bitcast_convert_type(values, jnp.uint32) + (_mix(index ^ stream ^ seed) >> 16)
    return jax.lax.bitcast_convert_type((bits >> 16).astype(jnp.uint16), jnp.bfloat16)


def _hash(text: str) -> UInt32[Array, ""]:
    return jnp.uint32(zlib.crc32(text.encode()))


def _mix(bits: UInt32[Array, "*shape"]) -> UInt32[Array, "*shape"]:
    """Hashes 32 bits: the finalizer of MurmurHash3, a bijection in which every bit changes half of the others."""
    bits = (bits ^ (bits >> 16)) * jnp.uint32(0x85EBCA6B)
    bits = (bits ^ (bits >> 13)) * jnp.uint32(0xC2B2AE35)
    return bits ^ (bits >> 16)
