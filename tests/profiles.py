"""A profile that is made up, for what reads profiles."""

from sharding.costs.profiled import LayerProfile, LinearFit, PassTimes, Profile
from sharding.plans.trained_parts import RequiredGradients, trained_parts
from sharding.specs.modules import ModuleGraph


def synthetic_profile(graph: ModuleGraph, kind: str, tps: tuple[int, ...] = (1, 2, 4, 8)) -> Profile:
    """Layers whose time is in proportion to their parameters and divided by tensor ranks without a loss."""
    turns = RequiredGradients(graph, trained_parts(graph, ("all",)))
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
        for layer, _, of in turns.of_layers(module.name, 0, module.layer_count)
        for tp in tps
    )
    nothing = LinearFit(0.0, 0.0, 0.0)
    return Profile(kind, 8, 0.0, 4, {}, layers, nothing, nothing, nothing, nothing, nothing)


def _passes(seconds: float) -> PassTimes:
    return PassTimes((seconds,), (seconds,))
