"""Modules and what feeds each: built from the dataclasses in `configs` from which the Flax modules are built too."""

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

_NO_LAYER = LayerSpec(
    name="", part="", kernels=(), parameters=0, replicated_parameters=0, saved={}, output_elements=ZERO
)


@dataclasses.dataclass(frozen=True)
class ModuleSpec:
    """The costs of one module, for planners: a stack of equal layers, with some before and after it.

    Attributes:
        name: Name of the module, as in its configuration.
        layer_count: Number of layers of the stack, which pipeline stages divide among them.
        inputs: Names of the modules that feed it.
        tensor_splits: What tensor parallelism divides: pairs (name, size).
        divisible: Whether its layers may be divided among several stages.
        leading_layers: Layers on the stage of its first layer, before the stack.
        layer: Each layer of the stack.
        trailing_layers: Layers on the stage of its last layer, after the stack.
        extra_input: Elements that it alone takes from the module that feeds it, besides that module's output.
        is_backbone: Whether it is the language model, whose tokens count as throughput.
        adapters: Adapters of each layer of the stack.
        expert_count: Experts of each layer, which expert parallelism divides; 0 without experts.
    """

    name: str
    layer_count: int
    inputs: tuple[str, ...] = ()
    _: dataclasses.KW_ONLY
    tensor_splits: tuple[tuple[str, int], ...] = ()
    divisible: bool = True
    leading_layers: tuple[LayerSpec, ...] = ()
    layer: LayerSpec = _NO_LAYER
    trailing_layers: tuple[LayerSpec, ...] = ()
    extra_input: PerLoad = ZERO
    is_backbone: bool = False
    adapters: tuple[LayerSpec, ...] = ()
    expert_count: int = 0

    def __post_init__(self) -> None:
        if self.layer_count < 1:
            raise ValueError(f"module {self.name} has {self.layer_count} layers; it must have at least 1")

    def supports_tp(self, tp: int) -> bool:
        """Whether `tp` divides every size that tensor parallelism divides."""
        return all(size % tp == 0 for _, size in self.tensor_splits)

    @property
    def supports_cp(self) -> bool:
        """Whether context-parallel ranks can divide its tokens: its attention sends keys and values around a ring."""
        return any(kernel.ring_elements != ZERO for layer, _ in self.all_layers for kernel in layer.kernels)

    def layers_between(self, first: int, last: int) -> tuple[tuple[LayerSpec, int], ...]:
        """The layers on a stage that owns layers `first` to `last` of the stack, the last excluded: (layer, count)."""
        leading = self.leading_layers if first == 0 else ()
        trailing = self.trailing_layers if last == self.layer_count else ()
        # Adapters come first: a frozen layer after an adapter that trains computes a dgrad.
        stack = ((layer, last - first) for layer in (*self.adapters, self.layer))
        return (*((layer, 1) for layer in leading), *stack, *((layer, 1) for layer in trailing))

    def layer_named(self, name: str) -> LayerSpec:
        """Its layer of a name."""
        return next(layer for layer, _ in self.all_layers if layer.name == name)

    @property
    def all_layers(self) -> tuple[tuple[LayerSpec, int], ...]:
        """All its layers: pairs (layer, count)."""
        return self.layers_between(0, self.layer_count)

    @property
    def parameter_count(self) -> int:
        """Elements of all its parameters."""
        return sum(layer.parameter_count * count for layer, count in self.all_layers)

    @property
    def trainable_parts(self) -> tuple[str, ...]:
        """Names of the parts that can train or be frozen."""
        return tuple(dict.fromkeys(layer.part for layer, _ in self.all_layers))

    @property
    def frozen_by_default(self) -> frozenset[str]:
        """Names of the parts that train only if they are named."""
        return frozenset(layer.part for layer, _ in self.all_layers if layer.frozen_by_default)

    def forward_flops(self, loads: Loads) -> Float[np.ndarray, "*shape"]:
        """FLOPs of one forward for each load."""
        return sum((layer.flops * count for layer, count in self.all_layers), start=ZERO).at(loads)


@dataclasses.dataclass(frozen=True)
class ModuleGraph:
    """All modules, each after those that feed it."""

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
    encoders = tuple(_encoder_spec(encoder, config.backbone) for encoder in config.encoders)
    backbone = _backbone_spec(config)
    generators = tuple(_generator_spec(generator, config.backbone) for generator in config.generators)
    specs = (*encoders, backbone, *generators)
    configs = (*config.encoders, config.backbone, *config.generators)
    return ModuleGraph(tuple(_with_adapters(*pair, config) for pair in zip(specs, configs, strict=True)))


def _with_adapters(spec: ModuleSpec, config: ModuleConfig, model: ModelConfig) -> ModuleSpec:
    lora = model.lora_of(spec.name)
    if lora is None:
        return spec
    return dataclasses.replace(spec, adapters=(adapter_layer(config, spec.layer.name, lora),))


def _encoder_spec(config: VisionConfig | AudioConfig, backbone: BackboneConfig) -> ModuleSpec:
    leading, layer, trailing = encoder_layers(config, backbone)
    kv_heads = (("kv_heads", config.kv_heads),) if config.kv_heads else ()
    return ModuleSpec(
        config.name,
        config.depth,
        tensor_splits=(
            ("heads", config.heads), *kv_heads, ("ffn", config.ffn), *projector_splits(config.projector),
        ),
        leading_layers=leading,
        layer=layer,
        trailing_layers=trailing,
    )  # fmt: skip


def _backbone_spec(model: ModelConfig) -> ModuleSpec:
    config = model.backbone
    leading, layer, trailing = backbone_layers(model)
    hidden = expert_splits(config.experts) if config.experts else (("ffn", config.ffn),)
    return ModuleSpec(
        config.name,
        config.depth,
        inputs=tuple(encoder.name for encoder in model.encoders),
        tensor_splits=(
            ("heads", config.heads), ("kv_heads", config.kv_heads), *hidden, ("vocabulary", config.vocabulary),
        ),
        leading_layers=leading,
        layer=layer,
        trailing_layers=trailing,
        is_backbone=True,
        expert_count=config.experts.count if config.experts else 0,
    )  # fmt: skip


def _generator_spec(config: GeneratorConfig, backbone: BackboneConfig) -> ModuleSpec:
    leading, layer, trailing = generator_layers(config, backbone)
    return ModuleSpec(
        config.name,
        layer_count=1,
        inputs=(backbone.name,),
        tensor_splits=generator_splits(config),
        divisible=False,
        leading_layers=leading,
        layer=layer,
        trailing_layers=trailing,
        extra_input=PerLoad(items=config.conditions * backbone.width),
    )
