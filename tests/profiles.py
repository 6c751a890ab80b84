"""A synthetic profile, for tests that read profiles."""

import itertools

from sharding.costs.profiled import LayerProfile, LinearFit, PassTimes, Profile, TimedRanks
from sharding.plans.resolved.trained_parts import RequiredGradients, trained_parts
from sharding.specs.modules import ModuleGraph


def synthetic_profile(
    graph: ModuleGraph, kind: str, tps: tuple[int, ...] = (1, 2, 4, 8), rings: tuple[int, ...] = ()
) -> Profile:
    """A profile in which a layer's time is proportional to its parameters per rank; `rings` are numbers of cp ranks."""
    turns = RequiredGradients(graph, trained_parts(graph, ("all",)))
    layers = tuple(
        LayerProfile(
            layer=f"{layer.part}/{layer.name}",
            tp=ranks.tp,
            cp=ranks.cp,
            gradients=gradients,
            recompute="none",
            sizes=(100.0,),
            forward=_passes(1e-6 * layer.parameter_count / ranks.devices),
            backward=_passes(2e-6 * layer.parameter_count / ranks.devices),
        )
        for module in graph.modules
        for layer, _, gradients in turns.of_layers(module.name, 0, module.layer_count)
        for ranks in itertools.starmap(TimedRanks, itertools.product(tps, (1, *(rings if module.supports_cp else ()))))
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
