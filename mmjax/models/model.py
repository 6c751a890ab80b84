"""The whole model: its modules in topological order, and its forward pass as one plain function on one device.

Every plan is verified against this forward pass (`mmjax.training.verification`), and generation runs its layers.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax

from configs.architectures import ModelConfig
from mmjax.models.layers.lora import add_adapters, join_adapters
from mmjax.models.modalities import audio, vision  # noqa: F401  (importing them registers their encoders)
from mmjax.models.modalities.backbone import backbone_module
from mmjax.models.modalities.encoder import encoder_module
from mmjax.models.modalities.generators.generator import generator_module
from mmjax.models.structure.module import BALANCING_LOSS, LayerOutput, Module, ModuleOutput, Piece, module_losses
from mmjax.models.structure.parameters import layer_name, piece_definition
from sharding.axes import Axes
from sharding.trees import Tree, get_leaf, set_leaf


def model_modules(config: ModelConfig) -> tuple[Module, ...]:
    """Encoders, backbone and generators of a model, in topological order, with their adapters."""
    encoders = (encoder_module(encoder, config) for encoder in config.encoders)
    generators = (generator_module(generator, config.backbone) for generator in config.generators)
    modules = (*encoders, backbone_module(config), *generators)
    for lora in config.lora:
        modules = tuple(add_adapters(module, lora) for module in modules)
    return modules


def with_tied_parameters(module_parameters: Tree, piece: Piece, parameters: Tree) -> Tree:
    """Adds the parameters that a piece shares with another piece of the module to a layer's parameters.

    Args:
        module_parameters: The module's parameters, `{piece: {layer: {...}}}`.
        piece: The piece that the layer is in.
        parameters: The layer's own parameters.
    """
    for path, owner, owner_path in piece.tied_parameters:
        parameters = set_leaf(parameters, path, get_leaf(module_parameters[owner][layer_name(0)], owner_path))
    return parameters


Observe = Callable[[str, Any], Any]
"""`(module/piece/layer, output of the layer) -> input of the next layer`."""


def as_it_is(name: str, output: Any) -> Any:
    """Returns the output of a layer unchanged."""
    return output


def run_module(
    module: Module,
    parameters: Tree,
    inputs: dict[str, jax.Array],
    batch: Mapping[str, Any],
    observe: Observe = as_it_is,
) -> ModuleOutput:
    """Runs a module's layers one after another.

    Args:
        module: The module.
        parameters: Its parameters, `{piece: {layer: {...}}}`.
        inputs: Activations of the modules before it, by their names.
        batch: The arrays that it reads, rows first.
        observe: Called with the output of every layer; returns the input of the next layer.
    """
    x: Any = inputs
    axes, auxiliary_losses = Axes(), []
    for piece in module.compute_pieces:
        definition, adapters = piece_definition(piece), parameters.get(module.adapter_piece(piece.name), {})
        shared = piece.shared_inputs(batch) if piece.shared_inputs else batch
        for number in range(piece.layers or 1):
            layer = layer_name(number)
            layer_parameters = join_adapters(parameters[piece.name][layer], adapters.get(layer, {}))
            layer_parameters = with_tied_parameters(parameters, piece, layer_parameters)
            x = definition.apply(layer_parameters, x, piece.inputs_of_layer(shared, number), axes)
            if isinstance(x, LayerOutput):
                auxiliary_losses.append(x.auxiliary_loss)
                x = x.x
            x = observe(f"{module.name}/{piece.name}/{layer}", x)
    if auxiliary_losses:
        balancing_loss = sum(auxiliary_losses[1:], start=auxiliary_losses[0])
        return x._replace(auxiliary_losses={**x.auxiliary_losses, BALANCING_LOSS: balancing_loss})
    return x


def run_model(
    modules: tuple[Module, ...],
    parameters: Tree,
    batch: Mapping[str, Mapping[str, jax.Array]],
    observe: Observe = as_it_is,
) -> dict[str, ModuleOutput]:
    """Runs a model, and returns every module's output by name.

    Args:
        modules: The modules in topological order.
        parameters: Their parameters, `{module: {piece: {layer: {...}}}}`.
        batch: The arrays that each module reads, `{module: {name: array}}`, rows first.
        observe: Called with the output of every layer; returns the input of the next layer.
    """
    outputs: dict[str, ModuleOutput] = {}
    for module in modules:
        inputs = {name: outputs[name].activations[module.name] for name in module.inputs}
        outputs[module.name] = run_module(module, parameters[module.name], inputs, batch[module.name], observe)
    return outputs


def losses_by_name(outputs: Mapping[str, ModuleOutput]) -> dict[str, jax.Array]:
    """Returns every loss and auxiliary loss of a model by its name, given every module's output."""
    return {name: loss for module, output in outputs.items() for name, loss in module_losses(module, output).items()}
