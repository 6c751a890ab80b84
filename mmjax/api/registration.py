"""Checks that `register_encoder` and `register_generator` share: of the class, and of costs against modules."""

import math
from collections.abc import Container
from typing import Any

import jax

from configs.architectures import EncoderConfig, GeneratorConfig
from configs.common.errors import UserError
from mmjax.models.structure.module import Module
from mmjax.models.structure.parameters import abstract_module_parameters
from sharding.specs.layers.module_spec import ModuleSpec


def check_kind(kind: Any, base: type, function: str, registered: Container[Any]) -> str:
    """Checks the class of a new kind, and returns its name.

    Args:
        kind: The class.
        base: Required base class.
        function: Name of the registering function, for messages.
        registered: The kinds that are known already.

    Raises:
        UserError: The class is no subclass of `base`, no dataclass of its own, or registered already.
    """
    name = getattr(kind, "__name__", repr(kind))
    if not isinstance(kind, type) or not issubclass(kind, base):
        raise UserError(f"{function}: {name} is not a subclass of {base.__name__}")
    if kind in registered:
        raise UserError(f"{function}: {name} is registered already; call it once, where the class is defined")
    if "__dataclass_fields__" not in vars(kind):
        raise UserError(f"{function}: {name} is no dataclass; add @dataclasses.dataclass(frozen=True)")
    return name


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
