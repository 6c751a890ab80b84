"""Which parts of a model train, and which gradients every layer then computes."""

import dataclasses
import difflib
from typing import Literal, NamedTuple

from configs.common.errors import UserError
from sharding.specs.layers.layer import LayerSpec
from sharding.specs.modules import ModuleGraph

Gradient = Literal["dgrad", "wgrad"]
"""The gradient with respect to a layer's input, or to its weights."""


def parts_by_name(graph: ModuleGraph) -> dict[str, tuple[str, ...]]:
    """Maps `all` to the parts not frozen by default, `projectors` to the projectors, and every part to itself."""
    parts = tuple(part for module in graph.modules for part in module.trainable_parts)
    frozen = {part for module in graph.modules for part in module.frozen_by_default}
    return {
        "all": tuple(part for part in parts if part not in frozen),
        "projectors": tuple(part for part in parts if part.endswith("_projector")),
        **{part: (part,) for part in parts},
    }


def find_parts(graph: ModuleGraph, name: str, setting: str) -> tuple[str, ...]:
    """The parts that a name in a setting stands for.

    Raises:
        UserError: The name is no part; the message has the nearest one.
    """
    parts = parts_by_name(graph)
    if name not in parts:
        close = difflib.get_close_matches(name, parts, n=1)
        nearest = f"did you mean {close[0]}? " if close else ""
        raise UserError(f"{setting} names {name!r}; {nearest}choose from {', '.join(parts)}")
    return parts[name]


def trained_parts(graph: ModuleGraph, trainable: tuple[str, ...]) -> frozenset[str]:
    """The parts that train.

    Args:
        graph: The model's modules.
        trainable: Names of parts, or `all`, or `projectors`; an autoencoder trains only if it is named.

    Raises:
        UserError: A name is no part.
    """
    return frozenset(part for name in trainable for part in find_parts(graph, name, "trainable"))


class LayerGradients(NamedTuple):
    """Equal layers, and the gradients that the backward of each computes.

    Attributes:
        layer: The layer.
        count: Number of such layers.
        gradients: The gradients that its backward computes; empty where it has none.
    """

    layer: LayerSpec
    count: int
    gradients: tuple[Gradient, ...]


@dataclasses.dataclass(frozen=True)
class RequiredGradients:
    """Which gradients the backward of each layer computes.

    Attributes:
        graph: The modules.
        trained_parts: Parts that train.
    """

    graph: ModuleGraph
    trained_parts: frozenset[str]

    def of_layers(self, module: str, first: int, last: int) -> tuple[LayerGradients, ...]:
        """The layers on a stage that owns layers `first` to `last` of a module, the last excluded."""
        spec = self.graph[module]
        trains_before = self.trains_upstream(module)
        if first:
            trains_before = trains_before or any(
                layer.part in self.trained_parts for layer, _ in spec.layers_between(0, first)
            )
        runs = []
        for layer, count in spec.layers_between(first, last):
            trains = layer.part in self.trained_parts
            # Of equal layers that train, all but perhaps the first compute dgrad. A layer that is frozen by default
            # computes it within itself if it trains, though its input needs no gradient.
            needs_dgrad = trains if layer.frozen_by_default else trains_before or (trains and count > 1)
            gradients: tuple[Gradient, ...] = (*(("dgrad",) if needs_dgrad else ()), *(("wgrad",) if trains else ()))
            runs.append(LayerGradients(layer, count, gradients))
            trains_before = trains_before or trains
        return tuple(runs)

    def trains_upstream(self, module: str) -> bool:
        """Whether anything before a module trains."""
        return any(self.trains_upstream(source) or self.trains_module(source) for source in self.graph[module].inputs)

    def trains_module(self, module: str) -> bool:
        """Whether any part of a module trains."""
        return any(part in self.trained_parts for part in self.graph[module].trainable_parts)
