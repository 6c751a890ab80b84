"""The whole model as one plain function on one device: what every layout is compared with, and what generates."""

from collections.abc import Mapping
from typing import Any

import jax

from mmjax.models.interface import Leaving, Passing, balance_name
from mmjax.models.lora import joined
from mmjax.models.module import Module
from mmjax.models.parameters import define, layer_name
from sharding.axes import Axes
from sharding.trees import Tree, get_leaf, set_leaf


def with_borrowed(module_parameters: Tree, piece: Any, parameters: Tree) -> Tree:
    """A layer's parameters together with what its piece borrows from another piece of the module."""
    for path, owner, there in piece.borrows:
        parameters = set_leaf(parameters, path, get_leaf(module_parameters[owner][layer_name(0)], there))
    return parameters


def run_module(module: Module, parameters: Tree, inputs: dict[str, jax.Array], batch: Mapping[str, Any]) -> Leaving:
    """Runs a module's layers one after another.

    Args:
        module: What to run.
        parameters: Its tree, `{piece: {layer: {...}}}`.
        inputs: Outputs of the modules before it, by their names.
        batch: The arrays it reads, rows first.
    """
    x: Any = inputs
    axes, losses = Axes(), []
    for piece in module.computed:
        definition, adapters = define(piece), parameters.get(module.adapters(piece.name), {})
        shared = piece.prepare(batch) if piece.prepare else batch
        for layer in range(piece.layers or 1):
            own = joined(parameters[piece.name][layer_name(layer)], adapters.get(layer_name(layer), {}))
            of_layer = with_borrowed(parameters, piece, own)
            x = definition.call(of_layer, x, shared, axes)
            if isinstance(x, Passing):
                losses.append(x.loss)
                x = x.x
    return x._replace(balance=sum(losses[1:], start=losses[0])) if losses else x


def run_model(
    modules: tuple[Module, ...], parameters: Tree, batch: Mapping[str, Mapping[str, jax.Array]]
) -> dict[str, Leaving]:
    """Every module's outputs, loss and judged arrays, by module name.

    Args:
        modules: In topological order.
        parameters: `{module: {piece: {layer: {...}}}}`.
        batch: `{module: arrays}` of rows.
    """
    left: dict[str, Leaving] = {}
    for module in modules:
        inputs = {name: left[name].outputs[module.name] for name in module.inputs}
        left[module.name] = run_module(module, parameters[module.name], inputs, batch[module.name])
    return left


def losses_of(left: Mapping[str, Leaving]) -> dict[str, jax.Array]:
    """Every loss by name, given what every module leaves."""
    losses = {name: of.loss for name, of in left.items()}
    losses |= {balance_name(name): of.balance for name, of in left.items()}
    return {name: loss for name, loss in losses.items() if loss is not None}
