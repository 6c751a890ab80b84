"""What is to be placed, fed by what: built from the dataclasses in `configs`, which the Flax modules are built from."""

import dataclasses

from configs.architectures import BackboneConfig, GeneratorConfig, ModelConfig, VisionConfig


@dataclasses.dataclass(frozen=True)
class ModuleSpec:
    """One module as a planner sees it.

    Attributes:
        name: Name of the module, as in its configuration.
        layers: Number of layers that pipeline stages may own.
        inputs: Names of the modules that feed it.
        splits: What tensor parallelism divides: (what it is, its size).
        divisible: Whether its layers may lie on several stages.
    """

    name: str
    layers: int
    inputs: tuple[str, ...] = ()
    splits: tuple[tuple[str, int], ...] = ()
    divisible: bool = True

    def __post_init__(self) -> None:
        if self.layers < 1:
            raise ValueError(f"module {self.name} has {self.layers} layers; it must have at least 1")


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

    def __getitem__(self, name: str) -> ModuleSpec:
        for module in self.modules:
            if module.name == name:
                return module
        raise KeyError(f"there is no module {name}; there are {', '.join(self.names)}")


def module_graph(config: ModelConfig) -> ModuleGraph:
    """The graph of a model: every encoder feeds the backbone, the backbone feeds every generator."""
    encoders = tuple(_vision_spec(encoder) for encoder in config.encoders)
    backbone = _backbone_spec(config.backbone, tuple(encoder.name for encoder in encoders))
    generators = tuple(_generator_spec(generator, backbone.name) for generator in config.generators)
    return ModuleGraph((*encoders, backbone, *generators))


def _vision_spec(config: VisionConfig) -> ModuleSpec:
    return ModuleSpec(config.name, config.depth, splits=(("heads", config.heads), ("ffn", config.ffn)))


def _backbone_spec(config: BackboneConfig, encoders: tuple[str, ...]) -> ModuleSpec:
    splits = (
        ("heads", config.heads),
        ("kv_heads", config.kv_heads),
        ("ffn", config.ffn),
        ("vocabulary", config.vocabulary),
    )
    return ModuleSpec(config.name, config.depth, encoders, splits)


def _generator_spec(config: GeneratorConfig, backbone: str) -> ModuleSpec:
    widths = tuple((f"widths[{index}]", width) for index, width in enumerate(config.widths))
    splits = (*widths, ("groups", config.groups), ("heads", config.heads))
    return ModuleSpec(config.name, 1, (backbone,), splits, divisible=False)
