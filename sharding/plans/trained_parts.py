"""Which parts of a model train, which stages they lie on, and which turns of the backward every layer then has."""

import dataclasses

from configs.errors import UserError
from sharding.plans.plan import Plan, stage_layers
from sharding.plans.stage_graph import StageId
from sharding.specs.layer import LayerSpec
from sharding.specs.modules import ModuleGraph


def trained_parts(graph: ModuleGraph, trainable: tuple[str, ...]) -> frozenset[str]:
    """The parts that train, by name, or `all`, or `projectors`; an autoencoder trains only by its name.

    Raises:
        UserError: A name is no part.
    """
    parts = tuple(part for module in graph.modules for part in module.trainable_parts)
    frozen = {part for module in graph.modules for part in module.frozen_by_default}
    groups = {
        "all": tuple(part for part in parts if part not in frozen),
        "projectors": tuple(part for part in parts if part.endswith("_projector")),
    }
    for name in trainable:
        if name not in groups and name not in parts:
            raise UserError(f"trainable names {name!r}; choose from {', '.join((*groups, *parts))}")
    return frozenset(part for name in trainable for part in groups.get(name, (name,)))


def trained_stages(plan: Plan, graph: ModuleGraph, trains: frozenset[str]) -> frozenset[StageId]:
    """Stages that hold a layer of a part that trains."""
    return frozenset(
        (unit.name, stage)
        for unit in plan.units
        for stage, runs in enumerate(stage_layers(unit, graph))
        if any(layer.part in trains for name, *span in runs for layer, _ in graph[name].layers_between(*span))
    )


@dataclasses.dataclass(frozen=True)
class RequiredGradients:
    """Which turns of the backward each layer has: `data`, the gradient of its input, and `weights`.

    Attributes:
        graph: The modules.
        trains: Parts that train.
    """

    graph: ModuleGraph
    trained_parts: frozenset[str]

    def of_layers(self, module: str, first: int, last: int) -> tuple[tuple[LayerSpec, int, tuple[str, ...]], ...]:
        """What a stage with these layers of a module holds: the layer, its number, its turns."""
        spec = self.graph[module]
        data = self.trains_upstream(module)
        if first:
            data = data or any(layer.part in self.trained_parts for layer, _ in spec.layers_between(0, first))
        runs = []
        for layer, count in spec.layers_between(first, last):
            weights = ("wgrad",) if layer.part in self.trained_parts else ()
            # Of equal layers that train, all but perhaps the first hand a gradient on; so do those within a frozen one.
            inner = bool(weights) if layer.frozen_by_default else data or (bool(weights) and count > 1)
            runs.append((layer, count, (("dgrad",) if inner else ()) + weights))
            data = data or bool(weights)
        return tuple(runs)

    def trains_upstream(self, module: str) -> bool:
        """Whether something before a module trains."""
        return any(self.trains_upstream(source) or self.trains_module(source) for source in self.graph[module].inputs)

    def trains_module(self, module: str) -> bool:
        """Whether something in a module trains."""
        return any(part in self.trained_parts for part in self.graph[module].trainable_parts)
