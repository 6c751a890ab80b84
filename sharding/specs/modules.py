"""Modules and what feeds each: built from the dataclasses in `configs` from which the Flax modules are built too.

Planners, costs and the engine read modules and edges from a `ModuleGraph`.
"""

import dataclasses

from configs.architectures import BackboneConfig, EncoderConfig, GeneratorConfig, ModelConfig
from sharding.specs.encoders import encoder_spec
from sharding.specs.experts import expert_splits
from sharding.specs.generator import generator_spec
from sharding.specs.layers.layer import LayerSpec
from sharding.specs.layers.local_attention import local_attention
from sharding.specs.layers.module_spec import EARLY_BLOCK, ModuleSpec
from sharding.specs.lora import adapter_layer
from sharding.specs.transformer import backbone_layers

ModuleConfig = EncoderConfig | BackboneConfig | GeneratorConfig


@dataclasses.dataclass(frozen=True)
class ModuleGraph:
    """All modules, each after the modules that feed it."""

    modules: tuple[ModuleSpec, ...]

    def __post_init__(self) -> None:
        known: set[str] = set()
        for module in self.modules:
            if module.name in known:
                raise ValueError(f"module {module.name} is in the graph twice; names must differ")
            for source in module.inputs:
                if source not in known:
                    raise ValueError(f"module {module.name} is fed by {source}, which does not come before it")
            known.add(module.name)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the modules, in order."""
        return tuple(module.name for module in self.modules)

    @property
    def edges(self) -> tuple[tuple[str, str], ...]:
        """Pairs (source module, target module)."""
        return tuple((source, module.name) for module in self.modules for source in module.inputs)

    @property
    def backbone(self) -> ModuleSpec:
        """The language model."""
        return next(module for module in self.modules if module.is_backbone)

    def __getitem__(self, name: str) -> ModuleSpec:
        for module in self.modules:
            if module.name == name:
                return module
        raise KeyError(f"there is no module {name}; there are {', '.join(self.names)}")


def module_graph(config: ModelConfig) -> ModuleGraph:
    """The graph of a model: every encoder feeds the backbone, the backbone feeds every generator."""
    encoders = tuple(encoder_spec(encoder, config.backbone) for encoder in config.encoders)
    backbone = _backbone_spec(config)
    generators = tuple(generator_spec(generator, config.backbone) for generator in config.generators)
    specs = (*encoders, backbone, *generators)
    configs = (*config.encoders, config.backbone, *config.generators)
    return ModuleGraph(tuple(_with_adapters(*pair, config) for pair in zip(specs, configs, strict=True)))


def _with_adapters(spec: ModuleSpec, config: ModuleConfig, model: ModelConfig) -> ModuleSpec:
    lora = model.lora_of(spec.name)
    if lora is None:
        return spec

    def adapters_of(layer: LayerSpec) -> LayerSpec:
        return adapter_layer(config, layer.name, lora, has_experts=layer.expert_parameters > 0)

    leading: list[LayerSpec] = []
    for layer in spec.leading_layers:
        leading += (adapters_of(layer), layer) if layer.name.startswith(EARLY_BLOCK) else (layer,)
    adapters = tuple(adapters_of(layer) for layer, _ in spec.stack)
    return dataclasses.replace(spec, leading_layers=tuple(leading), adapters=adapters)


def _backbone_spec(model: ModelConfig) -> ModuleSpec:
    config = model.backbone
    leading, ((layer, _), *later_runs), trailing = backbone_layers(model)
    return ModuleSpec(
        config.name,
        config.depth - model.early_blocks,
        inputs=tuple(encoder.name for encoder in model.encoders),
        tensor_splits=(
            ("heads", config.heads),
            ("kv_heads", config.kv_heads),
            *expert_splits(config),
        ),
        leading_layers=leading,
        layer=layer,
        later_runs=tuple(later_runs),
        trailing_layers=trailing,
        is_backbone=True,
        expert_count=config.experts.count if config.experts else 0,
        local=local_attention(config),
    )
