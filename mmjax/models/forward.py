"""The whole model as one plain function on one device: what every layout is compared with, and what generates."""

from collections.abc import Mapping
from typing import Any

import jax

from mmjax.models.layers.lora import join_adapters
from mmjax.models.structure.interface import LayerOutput, ModuleOutput, auxiliary_loss_name
from mmjax.models.structure.module import Module
from mmjax.models.structure.parameters import layer_name, piece_definition
from sharding.axes import Axes
from sharding.trees import Tree, get_leaf, set_leaf


def with_tied_parameters(module_parameters: Tree, piece: Any, parameters: Tree) -> Tree:
    """A layer's parameters together with what its piece borrows from another piece of the module."""
    for path, owner, there in piece.tied_parameters:
        parameters = set_leaf(parameters, path, get_leaf(module_parameters[owner][layer_name(0)], there))
    return parameters


def run_module(
    module: Module, parameters: Tree, inputs: dict[str, jax.Array], batch: Mapping[str, Any]
) -> ModuleOutput:
    """Runs a module's layers one after another.

    Args:
        module: What to run.
        parameters: Its tree, `{piece: {layer: {...}}}`.
        inputs: Outputs of the modules before it, by their names.
        batch: The arrays it reads, rows first.
    """
    x: Any = inputs
    axes, losses = Axes(), []
    for piece in module.compute_pieces:
        definition, adapters = piece_definition(piece), parameters.get(module.adapter_piece(piece.name), {})
        shared = piece.shared_inputs(batch) if piece.shared_inputs else batch
        for layer in range(piece.layers or 1):
            own = join_adapters(parameters[piece.name][layer_name(layer)], adapters.get(layer_name(layer), {}))
            of_layer = with_tied_parameters(parameters, piece, own)
            x = definition.apply(of_layer, x, shared, axes)
            if isinstance(x, LayerOutput):
                losses.append(x.auxiliary_loss)
                x = x.x
    return x._replace(auxiliary_loss=sum(losses[1:], start=losses[0])) if losses else x


def run_model(
    modules: tuple[Module, ...], parameters: Tree, batch: Mapping[str, Mapping[str, jax.Array]]
) -> dict[str, ModuleOutput]:
    """Every module's outputs, loss and judged arrays, by module name.

    Args:
        modules: In topological order.
        parameters: `{module: {piece: {layer: {...}}}}`.
        batch: `{module: arrays}` of rows.
    """
    left: dict[str, ModuleOutput] = {}
    for module in modules:
        inputs = {name: left[name].activations[module.name] for name in module.inputs}
        left[module.name] = run_module(module, parameters[module.name], inputs, batch[module.name])
    return left


def losses_by_name(left: Mapping[str, ModuleOutput]) -> dict[str, jax.Array]:
    """Every loss by name, given what every module leaves."""
    losses = {name: of.loss for name, of in left.items()}
    losses |= {auxiliary_loss_name(name): of.auxiliary_loss for name, of in left.items()}
    return {name: loss for name, loss in losses.items() if loss is not None}
