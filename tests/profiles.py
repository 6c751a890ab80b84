"""A profile that is made up, for what reads profiles."""

from sharding.profiled_costs import LayerProfile, Line, Passes, Profile
from sharding.specs import ModuleGraph
from sharding.trainable import Turns, trained_parts


def described_profile(graph: ModuleGraph, kind: str, tps: tuple[int, ...] = (1, 2, 4, 8)) -> Profile:
    """Layers whose time is in proportion to their parameters and divided by tensor ranks without a loss."""
    turns = Turns(graph, trained_parts(graph, ("all",)))
    layers = tuple(
        LayerProfile(
            f"{layer.part}/{layer.name}",
            tp,
            of,
            "none",
            (100.0,),
            _passes(1e-6 * layer.parameter_count / tp),
            _passes(2e-6 * layer.parameter_count / tp),
        )
        for module in graph.modules
        for layer, _, of in turns.of(module.name, 0, module.layers)
        for tp in tps
    )
    nothing = Line(0.0, 0.0, 0.0)
    return Profile(kind, 8, 0.0, 4, {}, layers, nothing, nothing, nothing, nothing, nothing)


def _passes(seconds: float) -> Passes:
    return Passes((seconds,), (seconds,))
