"""What registered kinds of encoders and generators have in common: their costs and their modules must agree."""

import math

import jax

from configs.architectures import EncoderConfig, GeneratorConfig
from configs.errors import UserError
from mmjax.models.structure.module import Module
from mmjax.models.structure.parameters import abstract_module_parameters
from sharding.specs.module_spec import ModuleSpec


def check_parameters(config: EncoderConfig | GeneratorConfig, module: Module, spec: ModuleSpec) -> None:
    """Raises UserError if the layer specs count other parameters than the module has."""
    name = type(config).__name__
    if module.name != config.name:
        raise UserError(f"{name}: its module is named {module.name!r}, its configuration {config.name!r}")
    counted: dict[str, int] = {}
    for layer, count in spec.all_layers:
        counted[layer.name] = counted.get(layer.name, 0) + layer.parameter_count * count
    there = {
        piece: sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(layers))
        for piece, layers in abstract_module_parameters(module).items()
    }
    for piece in {**there, **counted}:
        if there.get(piece, 0) != counted.get(piece, 0):
            raise UserError(
                f"{name}: the layer specs count {counted.get(piece, 0):,} parameters in {piece!r}, the module has "
                f"{there.get(piece, 0):,}; correct LayerSpec.parameters or replicated_parameters"
            )
