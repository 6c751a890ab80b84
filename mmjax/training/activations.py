"""Activations of a model by layer, and the gradients of its loss with respect to them, on one device.

The model runs as it is verified, layer after layer in one program, so any plan has the same activations to rounding.
"""

import difflib
import fnmatch
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from configs.architectures import ModelConfig
from configs.common.errors import UserError
from mmjax.models.model import losses_by_name, model_modules, run_model
from mmjax.models.structure.module import ModuleOutput
from sharding.trees import Tree

Arrays = Mapping[str, Mapping[str, Any]]
"""`{module: {name: [n, ...]}}`: the arrays of a batch."""


def layer_activations(
    config: ModelConfig, parameters: Tree, batch: Arrays, patterns: Sequence[str], *, gradients: bool = False
) -> dict[str, np.ndarray]:
    """Returns the outputs of layers by name, rows first, at least in float32; or the gradients of the loss by them.

    Args:
        config: The model.
        parameters: Its parameters in float32, `{module: {piece: {layer: {...}}}}`, on one device.
        batch: The batch, each module's arrays with `seed_and_step`.
        patterns: Names, or patterns such as `backbone/blocks/*`.
        gradients: Whether to return the gradients of the sum of the losses with respect to them instead.

    Raises:
        UserError: A pattern matches no layer; names the nearest.
    """
    order: list[str] = []  # the order of the layers; jax sorts the keys of the dictionary that it returns

    def shapes_in_order(parameters: Tree, batch: Arrays) -> dict[str, jax.Array]:
        seen = _run(config)({}, parameters, batch)[1]
        order.extend(seen)
        return seen

    shapes = jax.eval_shape(shapes_in_order, parameters, batch)
    names = select_names(patterns, order)
    program = _program(config, names, gradients)
    perturbations = {name: jnp.zeros(shapes[name].shape, shapes[name].dtype) for name in names} if gradients else {}
    arrays = program(perturbations, parameters, batch)
    return {name: np.asarray(arrays[name].astype(jnp.float32)) for name in names}


def select_names(patterns: Sequence[str], names: Sequence[str]) -> tuple[str, ...]:
    """The names that some pattern matches, in their order; raises UserError for a pattern that matches none."""
    chosen: set[str] = set()
    for pattern in patterns:
        matches = [name for name in names if fnmatch.fnmatchcase(name, pattern)]
        if not matches:
            close = difflib.get_close_matches(pattern, names, n=1, cutoff=0.0)[0]
            ends = ", ".join(dict.fromkeys(name.rsplit("/", 1)[0] + "/*" for name in names))
            raise UserError(f"no layer is named {pattern}; the nearest is {close}, and the layers are {ends}")
        chosen.update(matches)
    return tuple(name for name in names if name in chosen)


def _run(config: ModelConfig) -> Any:
    """`(perturbations, parameters, batch) -> (loss, activations by name)`; perturbations are added to activations."""
    modules, dtype = model_modules(config), jnp.dtype(config.dtype)

    def run(perturbations: Arrays, parameters: Tree, batch: Arrays) -> tuple[jax.Array, dict[str, jax.Array]]:
        seen: dict[str, jax.Array] = {}

        def observe(name: str, output: Any) -> Any:
            arrays = output.activations if isinstance(output, ModuleOutput) else output
            leaves, structure = jax.tree.flatten(arrays)
            for number, leaf_name in enumerate(_leaf_names(name, output, arrays)):
                if leaf_name in perturbations:
                    leaves[number] = leaves[number] + perturbations[leaf_name]
                seen[leaf_name] = leaves[number]
            arrays = jax.tree.unflatten(structure, leaves)
            return output._replace(activations=arrays) if isinstance(output, ModuleOutput) else arrays

        weights = jax.tree.map(lambda leaf: leaf.astype(dtype), parameters)
        losses = losses_by_name(run_model(modules, weights, batch, observe))
        return sum(losses.values(), start=jnp.zeros(())), seen

    return run


def _leaf_names(name: str, output: Any, arrays: Any) -> Iterator[str]:
    """Yields the name of each array that a layer returns: the layer's, with its target module or its path in a tree."""
    separator = ">" if isinstance(output, ModuleOutput) else "/"
    for path, _ in jax.tree_util.tree_leaves_with_path(arrays):
        yield name + (separator + jax.tree_util.keystr(path, simple=True, separator="/") if path else "")


@functools.lru_cache(maxsize=8)
def _program(config: ModelConfig, names: tuple[str, ...], gradients: bool) -> Any:
    """Makes the jitted function that returns the outputs of some layers; the last few functions are kept."""
    run = _run(config)

    def activations(perturbations: Arrays, parameters: Tree, batch: Arrays) -> dict[str, jax.Array]:
        seen = run(perturbations, parameters, batch)[1]
        return {name: seen[name] for name in names}

    def loss(perturbations: Arrays, parameters: Tree, batch: Arrays) -> jax.Array:
        return run(perturbations, parameters, batch)[0]

    return jax.jit(jax.grad(loss) if gradients else activations)
