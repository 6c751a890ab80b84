"""What is to be placed, fed by what: built from the dataclasses in `configs`, which the Flax modules are built from."""

import dataclasses

import numpy as np
from jaxtyping import Float

from configs.architectures import AudioConfig, BackboneConfig, GeneratorConfig, ModelConfig, VisionConfig
from sharding.specs.experts import expert_splits
from sharding.specs.generator import generator_layers, generator_splits
from sharding.specs.layer import ZERO, LayerSpec, Loads, PerLoad
from sharding.specs.lora import adapter_layer
from sharding.specs.projectors import projector_splits
from sharding.specs.transformer import backbone_layers, encoder_layers

ModuleConfig = VisionConfig | AudioConfig | BackboneConfig | GeneratorConfig

_BLANK = LayerSpec("", "", (), 0, 0, {}, ZERO)


@dataclasses.dataclass(frozen=True)
class ModuleSpec:
    """One module as a planner sees it.

    Attributes:
        name: Name of the module, as in its configuration.
        layers: Number of layers that pipeline stages may own.
        inputs: Names of the modules that feed it.
        splits: What tensor parallelism divides: (what it is, its size).
        divisible: Whether its layers may lie on several stages.
        before, after: What stands with its first and with its last layer.
        layer: Each of its layers.
        takes: Numbers that it takes from the modules before it beyond those that they hand to all.
        backbone: Whether it is the language model, whose tokens count as throughput.
        beside: Adapters of each of its layers.
        expert_count: Experts of each layer that has some, which expert parallelism divides; 0 where none has.
    """

    name: str
    layer_count: int
    inputs: tuple[str, ...] = ()
    tensor_splits: tuple[tuple[str, int], ...] = ()
    divisible: bool = True
    leading_layers: tuple[LayerSpec, ...] = ()
    layer: LayerSpec = _BLANK
    trailing_layers: tuple[LayerSpec, ...] = ()
    extra_input: PerLoad = ZERO
    is_backbone: bool = False
    adapters: tuple[LayerSpec, ...] = ()
    expert_count: int = 0

    def __post_init__(self) -> None:
        if self.layer_count < 1:
            raise ValueError(f"module {self.name} has {self.layer_count} layers; it must have at least 1")

    def supports_tp(self, tp: int) -> bool:
        """Whether so many tensor ranks divide all that they have to."""
        return all(size % tp == 0 for _, size in self.tensor_splits)

    @property
    def supports_cp(self) -> bool:
        """Whether sequence ranks can divide its tokens: whether its keys and values can travel around them."""
        return any(kernel.ring_elements != ZERO for layer, _ in self.all_layers for kernel in layer.kernels)

    def layers_between(self, first: int, last: int) -> tuple[tuple[LayerSpec, int], ...]:
        """What a stage with the layers from `first` up to `last` holds, each with its number."""
        before = self.leading_layers if first == 0 else ()
        after = self.trailing_layers if last == self.layer_count else ()
        # Adapters stand first: a frozen layer behind an adapter that trains hands a gradient on.
        stack = ((each, last - first) for each in (*self.adapters, self.layer))
        return (*((each, 1) for each in before), *stack, *((each, 1) for each in after))

    def layer_named(self, name: str) -> LayerSpec:
        """The layer of a kind that it has."""
        return next(layer for layer, _ in self.all_layers if layer.name == name)

    @property
    def all_layers(self) -> tuple[tuple[LayerSpec, int], ...]:
        """All of it."""
        return self.layers_between(0, self.layer_count)

    @property
    def parameter_count(self) -> int:
        """Numbers in its parameters."""
        return sum(layer.parameter_count * count for layer, count in self.all_layers)

    @property
    def trainable_parts(self) -> tuple[str, ...]:
        """Names of what can be trained or frozen in it."""
        return tuple(dict.fromkeys(layer.part for layer, _ in self.all_layers))

    @property
    def frozen_by_default(self) -> frozenset[str]:
        """Those of its parts that train only if they are named."""
        return frozenset(layer.part for layer, _ in self.all_layers if layer.frozen_by_default)

    def forward_flops(self, loads: Loads) -> Float[np.ndarray, "*shape"]:
        """Work of one forward for each load."""
        return sum((layer.flops * count for layer, count in self.all_layers), start=ZERO).at(loads)


@dataclasses.dataclass(frozen=True)
class ModuleGraph:
    """All modules, each after those that feed it."""

    modules: tuple[ModuleSpec, ...]

    def __post_init__(self) -> None:
        known: set[str] = set()
        for module in self.modules:
            if module.name in known:
                raise ValueError(f"module {module.name} stands twice in the graph; names must differ")
            for source in module.inputs:
                if source not in known:
                    raise ValueError(f"module {module.name} is fed by {source}, which does not stand before it")
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
    encoders = tuple(_encoder_spec(encoder, config.backbone) for encoder in config.encoders)
    backbone = _backbone_spec(config)
    generators = tuple(_generator_spec(generator, config.backbone) for generator in config.generators)
    specs = (*encoders, backbone, *generators)
    configs = (*config.encoders, config.backbone, *config.generators)
    return ModuleGraph(tuple(_adapted(spec, of, config) for spec, of in zip(specs, configs, strict=True)))


def _adapted(spec: ModuleSpec, config: ModuleConfig, model: ModelConfig) -> ModuleSpec:
    lora = model.lora_of(spec.name)
    if lora is None:
        return spec
    return dataclasses.replace(spec, adapters=(adapter_layer(config, spec.layer.name, lora),))


def _encoder_spec(config: VisionConfig | AudioConfig, backbone: BackboneConfig) -> ModuleSpec:
    before, layer, after = encoder_layers(config, backbone)
    kv_heads = (("kv_heads", config.kv_heads),) if config.kv_heads else ()
    splits = (("heads", config.heads), *kv_heads, ("ffn", config.ffn), *projector_splits(config.projector))
    return ModuleSpec(
        config.name, config.depth, tensor_splits=splits, leading_layers=before, layer=layer, trailing_layers=after
    )


def _backbone_spec(config: ModelConfig) -> ModuleSpec:
    of = config.backbone
    before, layer, after = backbone_layers(config)
    widths = expert_splits(of.experts) if of.experts else (("ffn", of.ffn),)
    splits = (("heads", of.heads), ("kv_heads", of.kv_heads), *widths, ("vocabulary", of.vocabulary))
    inputs = tuple(encoder.name for encoder in config.encoders)
    experts = of.experts.count if of.experts else 0
    return ModuleSpec(
        of.name, of.depth, inputs, splits, True, before, layer, after, is_backbone=True, expert_count=experts
    )


def _generator_spec(config: GeneratorConfig, backbone: BackboneConfig) -> ModuleSpec:
    before, layer, after = generator_layers(config, backbone)
    takes = PerLoad(items=config.conditions * backbone.width)
    splits = generator_splits(config)
    return ModuleSpec(config.name, 1, (backbone.name,), splits, False, before, layer, after, takes)
