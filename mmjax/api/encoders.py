"""`mmjax.register_encoder`: one call makes a new kind of encoder known to planning, data pipeline and training."""

import functools
from collections.abc import Callable
from typing import TypeVar

from configs.architectures import BackboneConfig, EncoderConfig, ModelConfig
from configs.common.errors import UserError
from data.records import MEDIA_PARTS
from data.samples.encoder_format import EncoderFormat, encoder_format
from mmjax.api.registration import check_kind, check_parameters
from mmjax.models.modalities.encoder import encoder_module
from mmjax.models.structure.module import Module
from sharding.specs.encoders import encoder_spec
from sharding.specs.layers.module_spec import ModuleSpec

# Names that a new field must not have: capacities and batch arrays, and other placeholders in prompts.
_RESERVED_FIELDS = ("tokens", "images", "samples", "segments", "positions", *MEDIA_PARTS)

Config = TypeVar("Config", bound=EncoderConfig)


def register_encoder(
    kind: type[Config],
    *,
    specs: Callable[[Config, BackboneConfig], ModuleSpec],
    sample_format: Callable[[Config, int], EncoderFormat],
    modules: Callable[[Config, ModelConfig], Module],
) -> None:
    """Makes a kind of encoder known at every level; mmjax's own kinds are registered with the same functions.

    Call it once, in the file that defines the kind, so that every process which imports the file knows it. The three
    functions are compared with each other when a model uses the kind, before anything is compiled.

    Args:
        kind: Its configuration: a frozen dataclass that is an `EncoderConfig`, with a `field` and
            `positions_per_token`.
        specs: `(configuration, backbone) -> ModuleSpec`: what its layers cost, for planners (such as
            `sharding.specs.encoders.transformer_encoder_spec`).
        sample_format: `(configuration, capacity in a row) -> EncoderFormat`: what it reads of every sample.
        modules: `(configuration, model) -> Module`: its Flax module (such as
            `mmjax.models.modalities.encoder.transformer_encoder_module`).

    Raises:
        UserError: The kind is registered already, or its configuration lacks something.
    """
    _check_kind(kind)

    def checked_specs(config: Config, backbone: BackboneConfig) -> ModuleSpec:
        spec = specs(config, backbone)
        if spec.name != config.name:
            raise UserError(
                f"{kind.__name__}: its layer specs are named {spec.name!r}, its configuration {config.name!r}"
            )
        return spec

    def checked_format(config: Config, max_length: int) -> EncoderFormat:
        made = sample_format(config, max_length)
        _check_format(config, made)
        return made

    @functools.cache
    def checked_modules(config: Config, model: ModelConfig) -> Module:
        module = modules(config, model)
        check_parameters(config, module, checked_specs(config, model.backbone))
        return module

    encoder_spec.register(kind, checked_specs)
    encoder_format.register(kind, checked_format)
    encoder_module.register(kind, checked_modules)


def _check_kind(kind: type[EncoderConfig]) -> None:
    name = check_kind(kind, EncoderConfig, "register_encoder", encoder_spec.registry)
    field = getattr(kind, "field", None)
    if not isinstance(field, str) or not field.isidentifier() or field in _RESERVED_FIELDS:
        raise UserError(
            f"register_encoder: {name}.field is {field!r}; set it to a name for what the encoder reads, other than "
            f"{', '.join(_RESERVED_FIELDS)}"
        )
    if kind.positions_per_token is EncoderConfig.positions_per_token:
        raise UserError(f"register_encoder: {name} lacks the property positions_per_token; define it")


def _check_format(config: EncoderConfig, made: EncoderFormat) -> None:
    """Raises UserError if a format does not fit the configuration that it was made from."""
    name = f"{type(config).__name__}: {type(made).__name__}"
    if (made.module, made.field) != (config.name, config.field):
        raise UserError(
            f"{name} is of {made.field} for {made.module}, the configuration of {config.field} for {config.name}"
        )
    if made.values_per_token != config.positions_per_token * made.values_per_position:
        raise UserError(
            f"{name}.values_per_token is {made.values_per_token}; with {made.values_per_position} values in a position "
            f"and {config.positions_per_token} positions in a token it must be "
            f"{config.positions_per_token * made.values_per_position}"
        )
