"""Layers built by hand."""

from sharding.specs.layers.layer import Kernel, LayerSpec, PerLoad, SavedActivations


def bare_layer(name: str, part: str, *kernels: Kernel, expert_parameters: int = 0) -> LayerSpec:
    """A layer with these kernels, which has no other parameters and saves nothing."""
    return LayerSpec(
        name=name,
        part=part,
        kernels=kernels,
        parameters=0,
        replicated_parameters=0,
        expert_parameters=expert_parameters,
        saved={"none": SavedActivations()},
        output_elements=PerLoad(),
    )
