"""A synthetic profile, for tests that read profiles."""

from sharding.costs.profiled import LayerProfile, LinearFit, PassTimes, Profile
from sharding.plans.trained_parts import RequiredGradients, trained_parts
from sharding.specs.modules import ModuleGraph


def synthetic_profile(graph: ModuleGraph, kind: str, tps: tuple[int, ...] = (1, 2, 4, 8)) -> Profile:
    """A profile in which a layer's time is proportional to its parameters per tensor rank."""
    turns = RequiredGradients(graph, trained_parts(graph, ("all",)))
    layers = tuple(
        LayerProfile(
            layer=f"{layer.part}/{layer.name}",
            tp=tp,
            gradients=of,
            recompute="none",
            sizes=(100.0,),
            forward=_passes(1e-6 * layer.parameter_count / tp),
            backward=_passes(2e-6 * layer.parameter_count / tp),
        )
        for module in graph.modules
        for layer, _, of in turns.of_layers(module.name, 0, module.layer_count)
        for tp in tps
    )
    nothing = LinearFit(0.0, 0.0, 0.0)
    return Profile(
        device_kind=kind,
        devices_per_node=8,
        peak_flops=0.0,
        element_bytes=4,
        versions={},
        layers=layers,
        gather=nothing,
        reduce=nothing,
        update=nothing,
        hop=nothing,
        norm=nothing,
    )


def _passes(seconds: float) -> PassTimes:
    return PassTimes((seconds,), (seconds,))
