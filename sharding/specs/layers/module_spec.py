"""The costs of one module, for planners: a stack of layers, with some before and after it."""

import dataclasses
import functools

import numpy as np
from jaxtyping import Float

from sharding.specs.layers.layer import ZERO, LayerSpec, Loads, PerLoad
from sharding.specs.layers.local_attention import LocalAttention

_NO_LAYER = LayerSpec(
    name="", part="", kernels=(), parameters=0, replicated_parameters=0, saved={}, output_elements=ZERO
)

EARLY_BLOCK = "early_"
"""How the names of blocks begin that take features of an encoder (DeepStack): they are on the first stage."""


@dataclasses.dataclass(frozen=True)
class ModuleSpec:
    """The costs of one module, for planners: a stack of layers, with some before and after it.

    The layers of a stack are equal, or runs of equal ones follow each other; layers of one name are equal.

    Attributes:
        name: Name of the module, as in its configuration.
        layer_count: Number of layers of the stack, which pipeline stages divide among them.
        inputs: Names of the modules that feed it.
        tensor_splits: The sizes that tensor parallelism divides: pairs (name, size).
        divisible: Whether its layers may be divided among several stages.
        leading_layers: Layers on the stage of its first layer, before the stack.
        layer: Each layer of the stack, or of its first run.
        later_runs: Further runs of equal layers of the stack: pairs (layer, how many of `layer_count`).
        trailing_layers: Layers on the stage of its last layer, after the stack.
        values_per_position: Values of a row, as plans count capacities, that a position takes: frames, of audio two.
        values_per_slot: Values of which a capacity is a multiple: the values of a token of the backbone.
        extra_input: Elements that it alone takes from the module that feeds it, besides that module's output.
        is_backbone: Whether it is the language model, whose tokens count as throughput.
        adapters: Adapters of each layer of every run of the stack, in the order of the runs; empty for none.
        expert_count: Experts of each layer, which expert parallelism divides; 0 without experts.
        local: The attention of its local layers; None without such layers.
    """

    name: str
    layer_count: int
    inputs: tuple[str, ...] = ()
    _: dataclasses.KW_ONLY
    tensor_splits: tuple[tuple[str, int], ...] = ()
    divisible: bool = True
    leading_layers: tuple[LayerSpec, ...] = ()
    layer: LayerSpec = _NO_LAYER
    later_runs: tuple[tuple[LayerSpec, int], ...] = ()
    trailing_layers: tuple[LayerSpec, ...] = ()
    values_per_position: int = 1
    values_per_slot: int = 1
    extra_input: PerLoad = ZERO
    is_backbone: bool = False
    adapters: tuple[LayerSpec, ...] = ()
    expert_count: int = 0
    local: LocalAttention | None = None

    def __post_init__(self) -> None:
        if self.layer_count < 1:
            raise ValueError(f"module {self.name} has {self.layer_count} layers; it must have at least 1")
        if self.stack[0][1] < 1:
            raise ValueError(f"module {self.name} has {self.layer_count} layers, no more than its later runs alone")

    def supports_tp(self, tp: int) -> bool:
        """Whether `tp` divides every size that tensor parallelism divides."""
        return all(size % tp == 0 for _, size in self.tensor_splits)

    @property
    def supports_cp(self) -> bool:
        """Whether context-parallel ranks can divide its tokens: its attention sends keys and values around a ring."""
        return any(kernel.ring_elements != ZERO for layer, _ in self.all_layers for kernel in layer.kernels)

    @property
    def early_blocks(self) -> int:
        """How many blocks that take features of an encoder stand before the stack, whose layers are counted alone."""
        return sum(layer.name.startswith(EARLY_BLOCK) for layer in self.leading_layers)

    @property
    def stack(self) -> tuple[tuple[LayerSpec, int], ...]:
        """The runs of equal layers of the stack: pairs (layer, count)."""
        return ((self.layer, self.layer_count - sum(count for _, count in self.later_runs)), *self.later_runs)

    def layers_between(self, first: int, last: int) -> tuple[tuple[LayerSpec, int], ...]:
        """The layers on a stage that owns layers `first` to `last` of the stack, the last excluded: (layer, count).

        Equal layers of the stack count together, wherever in the stage they are.
        """
        leading = self.leading_layers if first == 0 else ()
        trailing = self.trailing_layers if last == self.layer_count else ()
        stack: list[tuple[LayerSpec, int]] = []
        for layer, count in zip(self.stack_kinds, self.count_kinds(first, last), strict=True):
            # Adapters come first: a frozen layer after an adapter that trains computes a dgrad.
            stack += [(spec, count) for spec in (*self._adapters_of(layer), layer)] if count else []
        return (*((layer, 1) for layer in leading), *stack, *((layer, 1) for layer in trailing))

    def _adapters_of(self, kind: LayerSpec) -> tuple[LayerSpec, ...]:
        """The adapters of a layer of the stack; empty for none."""
        run = next(number for number, (layer, _) in enumerate(self.stack) if layer.name == kind.name)
        return self.adapters[run : run + 1]

    @functools.cached_property
    def stack_kinds(self) -> tuple[LayerSpec, ...]:
        """The different layers of the stack, by their first occurrence."""
        return tuple({layer.name: layer for layer, _ in self.stack}.values())

    @functools.cached_property
    def kind_of_layer(self) -> tuple[int, ...]:
        """Number of each layer of the stack among `stack_kinds`."""
        numbers = {layer.name: number for number, layer in enumerate(self.stack_kinds)}
        return tuple(numbers[layer.name] for layer, count in self.stack for _ in range(count))

    def count_kinds(self, first: int, last: int) -> tuple[int, ...]:
        """How many of layers `first` to `last` of the stack, the last excluded, are of each of `stack_kinds`."""
        owned = self.kind_of_layer[first:last]
        return tuple(owned.count(kind) for kind in range(len(self.stack_kinds)))

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
        return sum((layer.flops * count for layer, count in self.all_layers), start=ZERO).evaluate(loads)
