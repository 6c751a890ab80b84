"""`mmjax.register_generator`: one call makes a new kind of generator known to planning, training and generation."""

import functools
from collections.abc import Callable
from typing import TypeVar

import jax

from configs.architectures import BackboneConfig, GeneratorConfig
from configs.common.errors import UserError
from mmjax.api.registration import check_kind, check_parameters
from mmjax.models.modalities.generators.generator import generate_images, generator_module
from mmjax.models.structure.module import Module
from sharding.specs.generator import generator_spec
from sharding.specs.layers.module_spec import ModuleSpec

Config = TypeVar("Config", bound=GeneratorConfig)


def register_generator(
    kind: type[Config],
    *,
    specs: Callable[[Config, BackboneConfig], ModuleSpec],
    modules: Callable[[Config, BackboneConfig], Module],
    sample: Callable[..., jax.Array],
) -> None:
    """Makes a kind of image generator known at every level; mmjax's own kinds are registered with the same functions.

    Call it once, in the file that defines the kind. The data pipeline feeds it as it feeds every generator: `images`
    [r, g, y, x, c], the `samples` [r, g] that key its noise, and `weights` [r, g]. Costs and modules are compared when
    a model uses the kind, before anything is compiled.

    Args:
        kind: Its configuration: a frozen dataclass that is a `GeneratorConfig`.
        specs: `(configuration, backbone) -> ModuleSpec`: what its layers cost, for planners (such as
            `sharding.specs.generator.image_generator_spec`).
        modules: `(configuration, backbone) -> Module`: its Flax module (such as
            `mmjax.models.modalities.generators.generator.image_generator_module`).
        sample: Generates images: `(configuration, pieces by name, conditions [b, q, k], keys [b], steps, guidance) ->
            [b, y, x, c]` in [-1, 1].

    Raises:
        UserError: The kind is registered already, or it is no dataclass of its own.
    """
    name = check_kind(kind, GeneratorConfig, "register_generator", generator_spec.registry)

    def checked_specs(config: Config, backbone: BackboneConfig) -> ModuleSpec:
        spec = specs(config, backbone)
        if spec.name != config.name:
            raise UserError(f"{name}: its layer specs are named {spec.name!r}, its configuration {config.name!r}")
        return spec

    @functools.cache
    def checked_modules(config: Config, backbone: BackboneConfig) -> Module:
        module = modules(config, backbone)
        check_parameters(config, module, checked_specs(config, backbone))
        return module

    generator_spec.register(kind, checked_specs)
    generator_module.register(kind, checked_modules)
    generate_images.register(kind, sample)
